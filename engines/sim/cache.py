"""Paged KV cache with prefix reuse, as vLLM's block pool keeps it.

Blocks are physical: the same content may lie in several, each is counted, announced and evicted on
its own. A free block keeps its content until it is handed out again, oldest first. Block 0 is the
null block and never handed out. Invariant: every block is either referenced or in the free list,
and every hash in the map points at blocks that hold it.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Extra = tuple[tuple[str, ...], ...] | None

NONE_HASH = hashlib.sha256(pickle.dumps("vllm-none-hash", protocol=5)).digest()


def hash_block(parent: bytes, ids: Sequence[int], extra: Extra) -> bytes:
    """vLLM's default block hash (`sha256`): equal on every engine for equal content."""
    return hashlib.sha256(pickle.dumps((parent, tuple(ids), extra), protocol=5)).digest()


def external(digest: bytes) -> int:
    """A block hash as events carry it: its low 64 bits, unsigned."""
    return int.from_bytes(digest[-8:], "big")


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks newly cached: `hashes` follow `parent`; `token_ids` holds all their tokens."""

    hashes: tuple[bytes, ...]
    parent: bytes | None
    token_ids: tuple[int, ...]
    extra_keys: tuple[Any, ...]
    lora_name: str | None = None
    lora_id: int | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    hash: bytes


@dataclass(frozen=True, slots=True)
class Cleared:
    pass


Event = Stored | Removed | Cleared


class Block:
    __slots__ = ("content", "hash", "id", "refs")

    def __init__(self, number: int) -> None:
        self.id = number
        self.refs = 0
        self.hash: bytes | None = None
        self.content = 0  # digest of the tokens whose KV lies here; what a reader would get


class BlockManager:
    """`num_blocks` includes the null block; sizes are in blocks of `block_size` tokens."""

    def __init__(self, num_blocks: int, block_size: int, events: bool = True) -> None:
        if num_blocks < 2:
            raise ValueError(f"the cache needs at least 2 blocks, got {num_blocks}")
        self.block_size = block_size
        self.blocks = [Block(i) for i in range(num_blocks)]
        self._free: OrderedDict[int, None] = OrderedDict((i, None) for i in range(1, num_blocks))
        self._cached: dict[bytes, dict[int, None]] = {}
        self._announce = events
        self.events: list[Event] = []

    @property
    def capacity(self) -> int:
        return len(self.blocks) - 1

    @property
    def free(self) -> int:
        return len(self._free)

    def usage(self) -> float:
        return 1.0 - len(self._free) / self.capacity

    def cached(self) -> dict[bytes, int]:
        """Every cached hash and in how many blocks it lies."""
        return {h: len(ids) for h, ids in self._cached.items()}

    def lookup(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest contiguous cached prefix."""
        hit: list[int] = []
        for digest in hashes:
            ids = self._cached.get(digest)
            if ids is None:
                break
            hit.append(next(iter(ids)))
        return hit

    def touch(self, ids: Sequence[int]) -> None:
        """Takes references to cached blocks, out of the free list where they lie in it."""
        for number in ids:
            block = self.blocks[number]
            if block.refs == 0:
                del self._free[number]
            block.refs += 1

    def in_free_list(self, ids: Sequence[int]) -> int:
        """How many of these blocks a `touch` would take from the free list."""
        return sum(self.blocks[i].refs == 0 for i in ids)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks, oldest free ones first, or None when there are not as many."""
        if count > len(self._free):
            return None
        taken = []
        for _ in range(count):
            number, _none = self._free.popitem(last=False)
            block = self.blocks[number]
            self._evict(block)
            block.refs, block.content = 1, 0
            taken.append(number)
        return taken

    def store(self, ids: Sequence[int], stored: Stored) -> None:
        """Makes full blocks findable by their hashes and announces them."""
        for number, digest in zip(ids, stored.hashes, strict=True):
            self.blocks[number].hash = digest
            self._cached.setdefault(digest, {})[number] = None
        if self._announce and ids:
            self.events.append(stored)

    def announce(self, stored: Stored) -> None:
        """Repeats what is cached already (`kv_cache_report_mode: full`); adds no copy."""
        if self._announce:
            self.events.append(stored)

    def release(self, ids: Sequence[int]) -> None:
        """Gives references back; the tail of a chain becomes the first to be evicted."""
        for number in reversed(ids):
            block = self.blocks[number]
            block.refs -= 1
            assert block.refs >= 0, f"block {number} released more often than taken"
            if block.refs == 0:
                self._free[number] = None

    def reset(self) -> bool:
        """Forgets all cached prefixes; False (and no change) while any block is in use."""
        if len(self._free) != self.capacity:
            return False
        for ids in self._cached.values():
            for number in ids:
                self.blocks[number].hash = None
        self._cached.clear()
        if self._announce:
            self.events.append(Cleared())
        return True

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def _evict(self, block: Block) -> None:
        digest = block.hash
        if digest is None:
            return
        block.hash = None
        ids = self._cached[digest]
        del ids[block.id]
        if not ids:
            del self._cached[digest]
        if self._announce:
            self.events.append(Removed(digest))
