"""Properties of the block manager under random use, against a model that counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.sim.cache import NONE_HASH, BlockManager, Cleared, Removed, Stored, hash_block

SIZE = 4

PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=28)
ACTIONS = st.lists(
    st.one_of(PROMPTS, st.just("free"), st.just("reset")), min_size=1, max_size=60)


def chain(ids: list[int]) -> list[bytes]:
    hashes: list[bytes] = []
    for at in range(0, len(ids) - SIZE + 1, SIZE):
        hashes.append(hash_block(hashes[-1] if hashes else NONE_HASH, ids[at : at + SIZE], None))
    return hashes


def admit(cache: BlockManager, ids: list[int]) -> list[int] | None:
    """Takes the cached prefix and the rest anew, as the scheduler does for a whole prompt."""
    hashes = chain(ids)
    hit = cache.lookup(hashes[: (len(ids) - 1) // SIZE])
    missing = -(-len(ids) // SIZE) - len(hit)
    if cache.free - cache.in_free_list(hit) < missing:
        return None
    cache.touch(hit)
    fresh = cache.allocate(missing)
    assert fresh is not None
    blocks = hit + fresh
    new = hashes[len(hit) :]
    if new:
        tokens = tuple(ids[len(hit) * SIZE : len(hashes) * SIZE])
        parent = hashes[len(hit) - 1] if hit else None
        cache.store(blocks[len(hit) : len(hashes)],
                    Stored(tuple(new), parent, tokens, (None,) * len(new)))
    return blocks


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_random_use_keeps_counts_and_capacity(actions: list[object]) -> None:
    cache = BlockManager(9, SIZE)
    held: list[list[int]] = []
    told: dict[bytes, int] = {}
    for action in actions:
        if action == "free":
            if held:
                cache.release(held.pop(0))
        elif action == "reset":
            assert cache.reset() is (not held)
        else:
            assert isinstance(action, list)
            blocks = admit(cache, action)
            if blocks is not None:
                assert len(set(blocks)) == len(blocks) and 0 not in blocks
                held.append(blocks)
        # Every block is referenced as often as it is held, or free.
        refs = [sum(b.id in blocks for blocks in held) for b in cache.blocks]
        assert [b.refs for b in cache.blocks] == refs
        assert cache.free == sum(r == 0 for r in refs[1:]) <= cache.capacity
        # What the events tell is what the cache holds, copies counted.
        for event in cache.take_events():
            if isinstance(event, Stored):
                for h in event.hashes:
                    told[h] = told.get(h, 0) + 1
            elif isinstance(event, Removed):
                told[event.hash] -= 1
            else:
                assert isinstance(event, Cleared)
                told.clear()
        assert {h: n for h, n in told.items() if n} == cache.cached()


@given(PROMPTS, PROMPTS)
def test_a_hit_is_the_contiguous_prefix(first: list[int], second: list[int]) -> None:
    cache = BlockManager(32, SIZE)
    blocks = admit(cache, first)
    assert blocks is not None
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    hit = cache.lookup(chain(second))
    assert hit == blocks[: same // SIZE]


def test_a_hole_ends_the_hit() -> None:
    cache = BlockManager(5, SIZE)
    ids = [7] * 16
    blocks = admit(cache, ids)
    assert blocks is not None
    cache.release(blocks)  # the tail is the oldest now
    assert cache.allocate(1) == [blocks[-1]]
    assert cache.lookup(chain(ids)) == blocks[:-1]
    cache.touch(blocks[:1])
    assert cache.allocate(2) == [blocks[2], blocks[1]]
    assert cache.lookup(chain(ids)) == blocks[:1]


def test_too_many_blocks_are_refused_and_nothing_is_taken() -> None:
    cache = BlockManager(4, SIZE)
    assert cache.allocate(4) is None
    assert cache.free == cache.capacity == 3


def test_releasing_twice_is_found() -> None:
    cache = BlockManager(4, SIZE)
    blocks = cache.allocate(1)
    assert blocks is not None
    cache.release(blocks)
    with pytest.raises(AssertionError, match="released more often"):
        cache.release(blocks)


def test_a_cache_of_one_block_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockManager(1, SIZE)
