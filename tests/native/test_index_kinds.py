"""Block sizes, groups, scopes and tiers: what an index must not take for one another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from harness import kv_frames
from harness.kv_engine import IDS, SIZE, Engine, blocks, names
from harness.kv_frames import chain, removed, stored

from native._core import Index, Prompt


@pytest.fixture
def engine() -> Engine:
    return Engine()


# --- block sizes and groups -----------------------------------------------------------------------


def test_block_sizes_are_learnt_per_engine() -> None:
    index = Index(1 << 24)
    engines = {size: Engine(index) for size in (16, 32, 2096)}
    ids = list(range(2 * 2096))
    for size, engine in engines.items():
        assert index.block_size(engine.slot) == 0
        engine.send(stored(ids, size))
        assert index.block_size(engine.slot) == size
    prompt = Prompt.of_list([*ids, 7])
    found = index.match(prompt, [engine.slot for engine in engines.values()], 0.0)
    assert [match.device for match in found] == [4192, 4192, 4192]


def test_larger_blocks_start_the_engine_anew_and_smaller_ones_are_tails(engine: Engine) -> None:
    engine.send(blocks(4))
    assert engine.send(stored(IDS[:8], 8)).ignored == {"partial": 1}
    assert engine.device() == 4 * SIZE
    applied = engine.send(stored(IDS, 32))
    assert (applied.resized, applied.stored) == (1, 6)
    assert engine.device() == 6 * 32
    assert engine.index.block_size(engine.slot) == 32


WINDOW = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 3 * SIZE + 1}


def test_a_window_must_be_there_where_the_prefix_ends(engine: Engine) -> None:
    engine.send(blocks(12), stored(IDS, SIZE, group_idx=1, **WINDOW))
    assert engine.device() == 12 * SIZE
    hashes = names()
    engine.send(kv_frames.BlockRemoved([*hashes[0:4]], "GPU", 1))
    assert engine.device() == 12 * SIZE, "what lies before the window is not needed"
    engine.send(kv_frames.BlockRemoved([hashes[10]], "GPU", 1))
    assert engine.device() == 10 * SIZE
    engine.send(kv_frames.BlockRemoved([hashes[8]], "GPU", 1))
    assert engine.device() == 8 * SIZE
    engine.send(kv_frames.BlockRemoved([hashes[6]], "GPU", 1))
    assert engine.device() == 0, "four blocks from the start are gone too"


def test_masked_windows_name_the_blocks_they_keep_by_hash_alone(engine: Engine) -> None:
    masked = stored(IDS, SIZE, group_idx=1, **WINDOW)
    masked.block_hashes = masked.block_hashes[9:]
    masked.extra_keys = [None] * 3
    # Groups are announced in their order, and the window's may be the first one.
    assert engine.send(masked).untold == 3
    assert engine.send(blocks(12)).adopted == 3
    assert engine.device() == 12 * SIZE
    assert engine.device(IDS[: 11 * SIZE]) == 0, "no window ends there"


@pytest.mark.parametrize("order", ["window first", "window last"])
def test_windows_in_smaller_blocks_count_where_they_end_with_a_larger_one(
    engine: Engine, order: str
) -> None:
    """As of DeepSeek's models: `mla_attention` of 256 tokens, `sliding_window_mla` of 64.

    An engine hashes at the finest size, and names a larger block by the hash at its end.
    """
    ids = list(range(4 * 256))
    fine = chain(ids, 64, scope=(None, None))
    whole = stored(ids, 256, kv_cache_spec_kind="mla_attention")
    whole.block_hashes = list(fine[3::4])
    window = {"kv_cache_spec_kind": "sliding_window_mla", "kv_cache_spec_sliding_window": 300}
    tail = stored(ids, 64, group_idx=1, **window)
    events = [tail, whole] if order == "window first" else [whole, tail]
    applied = engine.send(*events)
    assert (applied.resized, applied.lost, applied.orphans) == (0, 0, 0)
    assert engine.index.block_size(engine.slot) == 256
    assert engine.device(ids) == 1024
    engine.send(kv_frames.BlockRemoved([fine[15]], "GPU", 1))
    assert engine.device(ids) == 768
    # The window reaches back over one larger block: its end must be there too.
    engine.send(kv_frames.BlockRemoved([fine[7]], "GPU", 1))
    assert engine.device(ids) == 256
    engine.send(kv_frames.BlockRemoved([fine[3]], "GPU", 0))
    assert engine.device(ids) == 0


def test_a_recurrent_state_is_needed_at_the_end_of_the_prefix(engine: Engine) -> None:
    engine.send(blocks(12))
    state = stored(IDS[: 4 * SIZE], 4 * SIZE, group_idx=1, kv_cache_spec_kind="mamba")
    state.block_hashes = [names()[3]]
    engine.send(state)
    assert engine.device() == 4 * SIZE, "attention has twelve blocks, the state is of the fourth"
    assert engine.device(IDS[: 7 * SIZE]) == 4 * SIZE
    assert engine.device(IDS[: 3 * SIZE]) == 0, "no state is of less than four blocks"


def test_a_group_of_recurrent_states_may_come_first_and_in_blocks_of_any_size(
    engine: Engine,
) -> None:
    """Hybrid models align their states to blocks of 2096 tokens, say; attention has others."""
    odd = 6 * SIZE + 8
    state = stored(IDS[:odd], odd, group_idx=0, kv_cache_spec_kind="mamba")
    engine.send(state)
    assert engine.device() == odd, "nothing is known of any other group yet"
    engine.send(stored(IDS, SIZE, group_idx=1))
    assert engine.index.block_size(engine.slot) == SIZE
    assert engine.device() == 0, "no state lies at the end of a block of the attention"
    whole = stored(IDS[: 8 * SIZE], 8 * SIZE, group_idx=0, kv_cache_spec_kind="mamba")
    whole.block_hashes = [names()[7]]
    other = Engine(engine.index)
    other.send(whole, stored(IDS, SIZE, group_idx=1))
    assert other.device() == 8 * SIZE


@pytest.mark.parametrize("kind", ["chunked_local_attention", "cross_attention", "unknown", "new"])
def test_groups_that_say_nothing_of_prefixes_are_ignored_and_counted(
    engine: Engine, kind: str
) -> None:
    applied = engine.send(blocks(4), stored(IDS[:32], SIZE, group_idx=1, kv_cache_spec_kind=kind))
    assert applied.ignored == {"group": 2}
    assert engine.device() == 4 * SIZE
    assert engine.send(kv_frames.BlockRemoved(names(2), "GPU", 1)).ignored == {"group": 2}
    assert engine.device() == 4 * SIZE


def test_engines_before_kinds_have_one_group_that_counts(engine: Engine) -> None:
    old = stored(IDS, SIZE, group_idx=None, kv_cache_spec_kind=None, extra_keys=None)
    second = msgspec.structs.replace(old, group_idx=1)
    applied = engine.index.apply(engine.slot, kv_frames.arrays(old, second))
    assert (applied.stored, applied.ignored, applied.dp_rank) == (12, {"group": 12}, -1)
    assert engine.device() == 12 * SIZE


# --- scopes ---------------------------------------------------------------------------------------


def test_scopes_do_not_share_blocks(engine: Engine) -> None:
    engine.send(
        stored(IDS[:32], SIZE),
        stored(IDS[:48], SIZE, lora_name="a", lora_id=1),
        stored(IDS[:64], SIZE, salt="s"),
        stored(IDS[:80], SIZE, lora_name="a", lora_id=1, salt="s"),
        stored(IDS, SIZE, lora_id=5, seed=5),
    )
    scopes = [(None, None), ("a", None), (None, "s"), ("a", "s"), ("s", None), (None, "a")]
    assert [engine.device(IDS, *scope) for scope in scopes] == [32, 48, 64, 80, 0, 0]


def test_a_salt_reaches_all_blocks_after_the_first(engine: Engine) -> None:
    engine.send(stored(IDS[:32], SIZE, salt="s"))
    engine.send(stored(IDS, SIZE, since=2, salt="s"))
    assert (engine.device(), engine.device(IDS, None, "s")) == (0, 12 * SIZE)


@pytest.mark.parametrize(
    "keys", [[("image", 3)], [b"digest"], [("image", 3), ("other", 20)]], ids=str
)
def test_images_and_embeddings_end_what_a_text_shares(engine: Engine, keys: list[Any]) -> None:
    event = blocks(4)
    event.extra_keys = [None, None, tuple(keys), None]
    engine.send(event)
    assert engine.device() == 2 * SIZE


def test_what_was_offloaded_under_a_salt_is_not_taken_for_unsalted(engine: Engine) -> None:
    salted = stored(IDS[:64], SIZE, salt="s")
    offload = msgspec.structs.replace(salted, medium="CPU", extra_keys=None)
    engine.send(salted, offload)
    engine.send(removed(*chain(IDS[:64], SIZE, scope=(None, "s"))))
    assert engine.match([*IDS, 1]).host == 0
    assert engine.match([*IDS, 1], None, "s").host == 64
    # Unknown, and salts are about: it waits for its twin.
    fresh = stored(IDS[:64], SIZE, salt="t", medium="CPU")
    fresh.extra_keys = None
    assert engine.send(fresh).untold == 4
    assert engine.match([*IDS, 1]).host == 0


# --- tiers ----------------------------------------------------------------------------------------


def test_lower_tiers_go_on_where_the_device_ends_and_do_not_return_to_it(engine: Engine) -> None:
    engine.send(blocks(12))
    engine.send(stored(IDS[: 8 * SIZE], SIZE, medium="CPU"))
    engine.send(stored(IDS[: 9 * SIZE], SIZE, medium="STORAGE", locality="LOCAL"))
    engine.send(removed(names()[4]))
    found = engine.match([*IDS, 1])
    assert (found.device, found.host, found.disk) == (64, 64, 16)
    assert found.total == 9 * SIZE, "a connector loads what follows from its own tiers"


def test_an_engine_that_announces_host_memory_only(engine: Engine) -> None:
    engine.send(stored(IDS, SIZE, medium="CPU", extra_keys=None))
    assert engine.match([*IDS, 1]).host == 12 * SIZE


def test_media_we_do_not_know_are_counted(engine: Engine) -> None:
    assert engine.send(stored(IDS, SIZE, medium="TAPE")).ignored == {"medium": 12}
    assert engine.send(removed(1, 2, medium="TAPE")).ignored == {"medium": 2}
    assert engine.device() == 0


def test_blocks_without_tokens_promise_nothing_by_themselves(engine: Engine) -> None:
    untold = {"token_ids": [], "block_size": 0, "parent_block_hash": None}
    bare = msgspec.structs.replace(blocks(12), medium="CPU", extra_keys=None, **untold)
    assert engine.send(bare).ignored == {"group": 12}, "no group has been seen"
    engine.send(blocks(2))
    assert engine.send(bare).untold == 10
    assert engine.match([*IDS, 1]).total == 2 * SIZE
    engine.send(removed(*names(2)))
    assert engine.match([*IDS, 1]).host == 2 * SIZE
