"""Changes of the core's blocks as events in vLLM's format. Pure.

A payload is msgpack, `[time, [event, ...], null]`, each event a map with a `type`
(`vllm/distributed/kv_events.py` of 0.32). Hashes are vLLM's own, in its default form: the last
eight bytes as an unsigned big-endian number. Blocks are told by hash alone: who has seen the
engine's own event of it knows the tokens. `medium` is CPU for the arena and STORAGE below it,
`locality` REMOTE for what several machines share.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec

from native import _core

HOST, DISK, REMOTE = 1, 2, 3
PLACES = {
    HOST: {"medium": "CPU", "locality": "LOCAL"},
    DISK: {"medium": "STORAGE", "locality": "LOCAL"},
    REMOTE: {"medium": "STORAGE", "locality": "REMOTE"},
}
OWNER = "kvbm"
BITS = ((HOST, 1), (DISK, 2), (REMOTE, 4))  # of the tiers in the core's lists
KEPT_BYTES_MAX = 256 << 20

Change = tuple[str, int, int, bytes, int]
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Space:
    """A namespace whose blocks are told. `groups`: how many groups of layers its model has."""

    number: int
    fingerprint: bytes
    model: str
    groups: int = 1

    @classmethod
    def of(cls, row: tuple[int, bytes, bytes, bytes]) -> Space:
        number, fingerprint, _, descriptor = row
        try:
            told = json.loads(descriptor)
        except ValueError:
            told = {}
        told = told if isinstance(told, dict) else {}
        groups = told.get("groups")
        count = len(groups) if isinstance(groups, list) and groups else 1
        return cls(number, fingerprint, str(told.get("model", "")), count)

    def hashes(self, keys: Sequence[bytes]) -> list[int]:
        """vLLM's numbers of blocks. A key does not say its group, so each group's number is told;
        those that are none name nothing.
        """
        found = []
        for group in range(self.groups):
            raw = _core.KvbmCore.hashes(self.fingerprint, list(keys), group)
            found += [int.from_bytes(_last_eight(one), "big") for one in raw]
        return found


def _last_eight(padded: bytes) -> bytes:
    """The end of a hash that was padded with zeros to 32 bytes: hashes have 32, 16 or 8."""
    for size in (8, 16):
        if not any(padded[size:]):
            return padded[size - 8 : size]
    return padded[24:]


def events(changes: Iterable[Change], spaces: dict[int, Space]) -> Iterator[dict[str, Any]]:
    """One event per run of changes of a kind. Cleared tiers are the caller's to see."""
    for (what, tier, number), run in groupby(changes, key=lambda c: c[:3]):
        space = spaces.get(number)
        if space is None or tier not in PLACES or what not in ("stored", "removed"):
            continue
        hashes = space.hashes([key for *_, key, _ in run])
        place = {**PLACES[tier], "ownership": OWNER}
        if what == "removed":
            yield {"type": "BlockRemoved", "block_hashes": hashes, **place}
        else:
            yield {
                "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None,
                "token_ids": [], "block_size": 0, "lora_id": None, "lora_name": None, **place,
            }  # fmt: skip


def payload(time_s: float, batch: Sequence[dict[str, Any]]) -> bytes:
    return _encode([time_s, batch, None])


@dataclass(slots=True)
class Kept:
    """The last batches, for who asks again; bounded by count and by bytes."""

    most: int
    next: int = 0  # number of the next batch
    _batches: deque[bytes] = field(default_factory=deque)
    _bytes: int = 0

    @property
    def oldest(self) -> int:
        return self.next - len(self._batches)

    def add(self, data: bytes) -> int:
        """The batch's number."""
        self._batches.append(data)
        self._bytes += len(data)
        while len(self._batches) > self.most or self._bytes > KEPT_BYTES_MAX:
            self._bytes -= len(self._batches.popleft())
        self.next += 1
        return self.next - 1

    def since(self, first: int) -> Iterator[tuple[int, bytes]]:
        skip = max(first - self.oldest, 0)
        for at in range(skip, len(self._batches)):
            yield self.oldest + at, self._batches[at]

    def clear(self) -> None:
        """Another life: numbers begin anew."""
        self._batches.clear()
        self.next = self._bytes = 0
