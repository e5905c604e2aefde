"""What an engine's events add to its prefixes and take from them, in order or not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from harness import kv_frames
from harness.kv_engine import IDS, SIZE, Engine, blocks, names
from harness.kv_frames import batch, removed, stored

from native._core import Index, Prompt


@pytest.fixture
def engine() -> Engine:
    return Engine()


# --- prefixes -------------------------------------------------------------------------------------


def test_the_last_token_is_never_matched_and_blocks_are_whole(engine: Engine) -> None:
    engine.send(blocks(4))
    lengths = [0, 1, 16, 17, 31, 32, 33, 64, 65, 100]
    matched = [engine.match(IDS[:length]).device for length in lengths]
    assert matched == [0, 0, 0, 16, 16, 16, 32, 48, 64, 64]


def test_a_hole_ends_the_prefix_and_closing_it_restores_it(engine: Engine) -> None:
    engine.send(blocks(12))
    engine.send(removed(names()[5]))
    assert engine.device() == 5 * SIZE
    assert engine.index.tokens(engine.slot) == 11 * SIZE
    engine.send(blocks(6, since=5))
    assert engine.device() == 12 * SIZE
    engine.send(removed(*reversed(names()[:3])))
    assert engine.device() == 0


def test_chunks_of_a_prefill_and_of_decoding_make_one_chain(engine: Engine) -> None:
    for since, until in ((0, 4), (4, 5), (5, 12)):
        assert engine.send(blocks(until, since)).stored == until - since
    assert engine.device() == 12 * SIZE


def test_every_block_with_no_parent_makes_no_chain_out_of_nothing(engine: Engine) -> None:
    whole = blocks(4)
    parts = [
        msgspec.structs.replace(
            whole,
            block_hashes=[whole.block_hashes[at]],
            token_ids=whole.token_ids[at * SIZE : (at + 1) * SIZE],
            extra_keys=[None],
        )
        for at in range(4)
    ]
    engine.send(*parts)
    assert engine.device(IDS[:64]) == SIZE, "only the first one begins a prompt"


# --- copies ---------------------------------------------------------------------------------------


def test_a_block_stored_twice_is_there_until_it_is_removed_twice(engine: Engine) -> None:
    engine.send(blocks(3))
    engine.send(blocks(3, since=2))
    engine.send(removed(names()[2]))
    assert engine.device() == 3 * SIZE
    engine.send(removed(names()[2]))
    assert engine.device() == 2 * SIZE
    assert engine.send(removed(names()[2])).ignored == {"absent": 1}


def test_the_same_hash_twice_in_one_event_is_two_copies(engine: Engine) -> None:
    event = blocks(2)
    event.block_hashes = [event.block_hashes[0]] * 2
    engine.send(event)
    assert engine.device() == SIZE
    engine.send(removed(event.block_hashes[0], event.block_hashes[0]))
    assert engine.index.stats().pairs == 0


# --- late, lost and reset -------------------------------------------------------------------------


def test_unknown_parents_wait_and_are_bounded(engine: Engine) -> None:
    assert engine.send(blocks(12, since=4)).orphans == 8
    assert (engine.device(), engine.index.stats().orphans) == (0, 8)
    assert (engine.index.held(engine.slot), engine.index.waiting(engine.slot)) == (0, 8)
    applied = engine.send(blocks(4))
    assert (applied.stored, applied.adopted) == (12, 8)
    assert (engine.device(), engine.index.stats().orphans) == (12 * SIZE, 0)
    assert (engine.index.held(engine.slot), engine.index.waiting(engine.slot)) == (12, 0)
    for start in range(0, 40_000, 400):
        engine.send(stored(list(range(400)) * SIZE, SIZE, since=1, seed=start))
    stats = engine.index.stats()
    assert 0 < stats.orphans <= 16_384
    assert stats.lost > 0


def test_a_waiting_block_that_is_removed_is_not_adopted(engine: Engine) -> None:
    engine.send(blocks(6, since=3))
    assert engine.send(removed(names()[4])).removed == 1
    engine.send(blocks(3))
    assert engine.device() == 4 * SIZE
    engine.send(blocks(5, since=4))
    assert engine.device() == 6 * SIZE


def test_what_waits_does_not_outlive_a_reset(engine: Engine) -> None:
    untold = {"token_ids": [], "block_size": 0, "parent_block_hash": None}
    bare = msgspec.structs.replace(blocks(8), medium="CPU", **untold)
    engine.send(blocks(2), blocks(12, since=4), bare)
    engine.send(kv_frames.AllBlocksCleared())
    assert engine.send(blocks(8)).adopted == 0
    found = engine.match([*IDS, 1])
    assert (found.device, found.total) == (8 * SIZE, 8 * SIZE)


def test_a_cleared_engine_is_empty_at_once_and_its_memory_comes_back(engine: Engine) -> None:
    other = Engine(engine.index)
    ids = list(range(16_384 * SIZE))
    for target in (engine, other):
        target.send(stored(ids, SIZE))
    full = engine.index.stats()
    engine.send(kv_frames.AllBlocksCleared(), blocks(2))
    assert (engine.device(ids), engine.device()) == (0, 2 * SIZE)
    assert other.device(ids) == len(ids)
    engine.index.clear(engine.slot)
    assert (engine.device(), engine.index.block_size(engine.slot)) == (0, 0)
    engine.index.remove_engine(other.slot)
    assert other.device(ids) == 0
    for _ in range(40):  # the map is cleaned bit by bit
        stats = engine.index.stats()
    assert (stats.pairs, stats.blocks, stats.engines) == (0, 0, 1)
    assert stats.bytes < full.bytes / 4, (stats.bytes, full.bytes)


def test_a_reset_keeps_disk_and_remote(engine: Engine) -> None:
    for medium, locality in (("GPU", None), ("CPU", None), ("STORAGE", None), ("CPU", "REMOTE")):
        count = {"GPU": 8, "CPU": 6}.get(medium, 4) if locality is None else 2
        engine.send(stored(IDS[: count * SIZE], SIZE, medium=medium, locality=locality))
    engine.send(kv_frames.AllBlocksCleared())
    found = engine.match(IDS)
    assert (found.device, found.host, found.disk, found.remote) == (0, 0, 4 * SIZE, 0)


def test_slots_are_reused_and_nothing_of_the_former_engine_is_left() -> None:
    index = Index(1 << 24)
    for turn in range(1000):
        engine = Engine(index)
        assert engine.slot == 0
        assert engine.device() == 0
        engine.send(stored(IDS, SIZE, seed=turn))
        assert engine.device() == len(IDS)
        index.remove_engine(engine.slot)
    for _ in range(3):
        stats = index.stats()
    assert (stats.pairs, stats.engines) == (0, 0)
    assert stats.bytes < 1 << 20


def test_an_engine_nobody_has_matches_nothing_and_takes_nothing() -> None:
    index = Index(1 << 20)
    for slot in (0, 7, 70_000):
        assert index.apply(slot, batch(blocks(2))).stored == 0
        index.predict(slot, Prompt.of_list(IDS), 0.0, 5.0)
        index.assume(slot, Prompt.of_list(IDS), 1000)
        index.clear(slot)
        index.remove_engine(slot)
        assert index.match(Prompt.of_list(IDS), [slot], 0.0)[0].total == 0


# --- guesses --------------------------------------------------------------------------------------


def test_a_prompt_sent_a_moment_ago_is_predicted_beyond_what_is_there(engine: Engine) -> None:
    engine.send(blocks(4))
    index, prompt = engine.index, Prompt.of_list([*IDS, 1])
    index.predict(engine.slot, prompt, 10.0, 5.0)
    found = index.match(prompt, [engine.slot], 12.0)[0]
    assert (found.device, found.predicted, found.total) == (64, 8 * SIZE, 12 * SIZE)
    assert index.match(prompt, [engine.slot], 15.0)[0].predicted == 0
    engine.send(blocks(12, since=4))
    assert index.match(prompt, [engine.slot], 12.0)[0].predicted == 0


def test_an_engine_that_is_silent_is_taken_to_keep_what_it_has_room_for(engine: Engine) -> None:
    index = engine.index
    old, new = Prompt.of_list([*IDS, 1]), Prompt.of_list([*range(6 * SIZE), 1])
    index.assume(engine.slot, old, 14 * SIZE)
    assert engine.device() == 12 * SIZE
    index.assume(engine.slot, new, 14 * SIZE)
    assert (engine.device(), engine.device(list(range(6 * SIZE)))) == (8 * SIZE, 6 * SIZE)
    assert (index.tokens(engine.slot), index.block_size(engine.slot)) == (14 * SIZE, 0)
    index.clear(engine.slot)
    assert (engine.device(), index.tokens(engine.slot)) == (0, 0)


def test_blocks_of_a_silent_engine_are_of_the_size_that_is_configured() -> None:
    index = Index(1 << 20)
    slot = index.add_engine(48)
    prompt = Prompt.of_list([*IDS, 1])
    index.assume(slot, prompt, 10_000)
    assert index.match(prompt, [slot], 0.0)[0].device == len(IDS) // 48 * 48 == 192
    index.clear(slot)
    index.predict(slot, Prompt.of_list(IDS[:100]), 0.0, 5.0)
    assert index.match(prompt, [slot], 1.0)[0].predicted == 96
    index.apply(slot, batch(blocks(3)))
    assert (index.block_size(slot), index.match(prompt, [slot], 1.0)[0].device) == (16, 48)


# --- bytes ----------------------------------------------------------------------------------------


def test_a_bad_event_is_counted_and_the_others_are_taken(engine: Engine) -> None:
    good = [blocks(2), blocks(4, since=2)]
    bad: list[Any] = [7, {"type": "BlockStored", "block_hashes": "x"}, {"no": "type"}, []]
    events = msgspec.to_builtins(good)
    payload = msgspec.msgpack.encode([1.0, [events[0], *bad, ["Moved"], events[1]], 3, "more"])
    applied = engine.index.apply(engine.slot, payload)
    assert (applied.stored, applied.dp_rank, applied.ts) == (4, 3, 1.0)
    assert applied.malformed == {"event": 3, "field": 1}
    assert applied.ignored == {"event": 1}
    assert engine.device() == 4 * SIZE
    assert engine.index.stats().malformed == {"event": 3, "field": 1}


def test_what_is_no_batch_is_counted(engine: Engine) -> None:
    for payload in (b"", b"\xc0", b"\x92\x01", b"\xff" * 40, b"{}"):
        assert engine.index.apply(engine.slot, payload).malformed == {"batch": 1}
    whole = batch(blocks(2), blocks(4, since=2))
    applied = engine.index.apply(engine.slot, whole[:-2])
    assert (applied.malformed, engine.device()) == ({"framing": 1}, 2 * SIZE)
    assert engine.index.apply(engine.slot, whole[:-1]).malformed == {"framing": 1}
    assert engine.device() == 4 * SIZE, "only the rank is missing"


def test_sessions_and_ranks_are_told(engine: Engine) -> None:
    event = msgspec.structs.replace(blocks(2), session_id="s-1")
    applied = engine.index.apply(engine.slot, batch(event, rank=2, ts=9.5))
    assert (applied.session, applied.dp_rank, applied.ts) == ("s-1", 2, 9.5)


# --- limits ---------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_turnover(engine: Engine) -> None:
    sizes = []
    for turn in range(40):
        ids = list(range(turn * 100_000, turn * 100_000 + 1024 * SIZE))
        hashes = [turn << 32 | at for at in range(1024)]
        event = msgspec.structs.replace(
            blocks(1), block_hashes=hashes, token_ids=ids, extra_keys=[None] * 1024
        )
        engine.send(event)
        engine.send(removed(*hashes))
        sizes.append(engine.index.stats().bytes)
    assert engine.index.stats().pairs == 0
    assert max(sizes[20:]) < 1.1 * max(sizes[:20])


def test_at_the_limit_blocks_that_lookups_use_outlive_others() -> None:
    pairs = 4096
    engine = Engine(Index(pairs * 64))
    hot = list(range(256 * SIZE))
    engine.send(stored(hot, SIZE))
    for turn in range(1, 60):
        ids = list(range(turn << 20, (turn << 20) + 256 * SIZE))
        engine.send(stored(ids, SIZE, seed=turn))
        assert engine.device(hot) == len(hot), turn
        assert engine.index.stats().pairs <= pairs
    assert engine.index.stats().evicted > 8000
    assert engine.device(ids) == len(ids), "the newest are taken"
    # A newcomer gets room from the engine that has most.
    other = Engine(engine.index)
    other.send(stored(ids, SIZE))
    assert (other.device(ids), engine.device(hot)) == (len(ids), len(hot))
