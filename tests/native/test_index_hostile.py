"""Events that no engine sends, or too many of them: memory and time stay within bounds.

What was quadratic is far beyond a test's patience at these sizes.
"""

from __future__ import annotations

import resource
import threading
from typing import Any

import msgspec
import pytest
from harness import kv_frames
from harness.kv_engine import IDS, SIZE, Engine, blocks

from native._core import Index, Prompt

CLEARED = {"type": "AllBlocksCleared"}
COUNT = 300_000
PATIENCE_S = 8.0


@pytest.fixture
def engine() -> Engine:
    return Engine(Index(1 << 28))


def stored(hashes: list[int], token: int = 1, **more: Any) -> dict[str, Any]:
    """Blocks whose tokens are all the same."""
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None,
        "token_ids": [token] * (SIZE * len(hashes)), "block_size": SIZE, "lora_id": None,
        "medium": "GPU", "lora_name": None, "group_idx": 0,
        "kv_cache_spec_kind": "full_attention", **more,
    }  # fmt: skip


def names(count: int, first: int = 1 << 40) -> list[int]:
    return list(range(first, first + count))


def payload(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([1.0, events, 0])


def apply(engine: Engine, data: bytes, what: str) -> Any:
    """One batch. A hostile one must not stop the events of others for long."""
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(engine.index.apply(engine.slot, data)), daemon=True
    )
    thread.start()
    thread.join(PATIENCE_S)
    assert found, f"no end after {PATIENCE_S:g}s: {what}"
    return found[0]


def resident() -> int:
    """MiB of this process, at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def test_blocks_that_change_their_meaning_cost_their_number(engine: Engine) -> None:
    hashes, plain = names(COUNT), [None] * COUNT
    apply(engine, payload(stored(hashes, 1, extra_keys=plain)), "blocks")
    again = apply(engine, payload(stored(hashes, 2, extra_keys=plain)), "other tokens for all")
    assert again.stored == COUNT
    assert engine.device([1] * 8 * SIZE) == 0 and engine.device([2] * 8 * SIZE) == 8 * SIZE


def test_many_that_wait_for_one_parent_are_bounded(engine: Engine) -> None:
    engine.send(blocks(1))
    waiting = [stored([name], parent_block_hash=77) for name in names(60_000)]
    found = apply(engine, payload(*waiting), "orphans of one parent")
    assert found.lost > 40_000 and engine.index.waiting(engine.slot) <= 16_384


@pytest.mark.parametrize("between", [0, 1, 1025])
def test_resets_without_end_cost_what_they_empty(engine: Engine, between: int) -> None:
    """What lies on disk outlives them; so they must not look at all of it each time."""
    kept = names(100_000)
    apply(engine, payload(stored(kept, medium="STORAGE")), "blocks on disk")
    apply(engine, payload(stored(kept)), "the same on the device")
    fresh = stored(names(between, 1 << 41), 3) if between else CLEARED
    count = 30 if between else 20_000
    done = apply(engine, payload(*[CLEARED, fresh] * count), "resets")
    assert done.cleared == count * (1 if between else 2)
    prompt = Prompt.of_list([1] * (8 * SIZE + 1))
    (found,) = engine.index.match(prompt, [engine.slot], 0.0)
    assert (found.device, found.disk) == (0, 8 * SIZE)


def test_resets_of_one_engine_leave_lanes_for_others() -> None:
    index = Index(1 << 28)
    one, other = Engine(index), Engine(index)
    turn = stored(names(1), 4), CLEARED
    apply(one, payload(*turn * 3000), "resets of a full cache")
    other.send(blocks(4))
    assert other.device() == 4 * SIZE and index.short(other.slot) == 0


@pytest.mark.parametrize("kind", ["BlockRemoved", "BlockStored"])
def test_an_event_of_more_blocks_than_there_can_be_is_refused(engine: Engine, kind: str) -> None:
    """Small numbers take one byte here and eight in memory."""
    engine.send(blocks(4))
    many = 24 << 20
    head = b"\x92\xcb" + bytes(8) + b"\x91\x82" + msgspec.msgpack.encode("type")
    head += msgspec.msgpack.encode(kind) + msgspec.msgpack.encode("block_hashes")
    before = resident()
    found = apply(engine, head + b"\xdd" + many.to_bytes(4, "big") + b"\1" * many, "a huge list")
    assert found.malformed == {"field": 1} and found.removed == 0
    assert engine.device() == 4 * SIZE
    assert resident() - before < 100, "MiB more than before"


def test_a_burst_beyond_the_limit_stays_within_it_and_is_told() -> None:
    """Scenario 69: more in one batch than the whole index may hold."""
    pairs = 4096
    engine = Engine(Index(pairs * 64))
    engine.send(blocks(4))
    assert engine.index.short(engine.slot) == 0
    found = apply(engine, payload(stored(names(100_000), 5)), "a burst")
    stats = engine.index.stats()
    assert stats.pairs <= pairs and stats.bytes < 4 * pairs * 64
    assert found.ignored["full"] == engine.index.short(engine.slot) > 90_000
    engine.send(kv_frames.AllBlocksCleared())
    assert engine.index.short(engine.slot) == 0


@pytest.mark.parametrize("room", [100_000, 1 << 40])
def test_any_number_of_prompts_of_their_own_is_bounded(room: int) -> None:
    """Scenario 68: without events, by what the engine has room for and by the index itself."""
    limit = 4 << 20
    index = Index(limit)
    slot = index.add_engine()
    most = 0
    for turn in range(20_000):
        index.assume(slot, Prompt.of_list([turn, *IDS]), room)
        if turn % 500 == 0:
            most = max(most, index.stats().bytes)
    assert index.stats().pairs <= min(room // SIZE, limit // 64) + 1024
    assert most < 2 * limit
