"""KV cache events in the form in which vLLM 0.32 puts them on the wire.

The structs repeat `vllm/distributed/kv_events.py`: a batch is an array, an event a map tagged with
its name, fields that have their default are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

Hash = int | bytes


class Event(msgspec.Struct, omit_defaults=True, tag=True):
    """What the three events have in common: the tag."""


class BlockStored(Event):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(Event):
    block_hashes: list[Hash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(Event):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


_encode = msgspec.msgpack.Encoder().encode


def batch(*events: Event, rank: int | None = 0, ts: float = 1.5) -> bytes:
    """One payload, as the third frame of a message."""
    return _encode([ts, list(events)] if rank is None else [ts, list(events), rank])


def arrays(*events: Event, ts: float = 1.5) -> bytes:
    """The same batch as versions before 0.32 wrote it: events as arrays, no rank."""
    written = []
    for event in events:
        names = event.__struct_fields__
        written.append([type(event).__name__, *(getattr(event, name) for name in names)])
    return _encode([ts, written])


def chain(
    tokens: Sequence[int], block_size: int, *, scope: object = None, seed: object = 0
) -> list[int]:
    """Block hashes of an engine: 64 bits each, depending on all tokens before and on the scope."""
    last = hashlib.sha256(repr((seed, scope)).encode()).digest()
    hashes = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        last = hashlib.sha256(last + repr(tokens[start : start + block_size]).encode()).digest()
        hashes.append(int.from_bytes(last[-8:], "big"))
    return hashes


def stored(
    tokens: Sequence[int], block_size: int, *, since: int = 0, seed: object = 0, **fields: Any
) -> BlockStored:
    """The event for the full blocks of `tokens` from block `since` on.

    `fields` replace those of a plain device event; `lora_name` and `salt` are the hashes' scope.
    """
    salt = fields.pop("salt", None)
    hashes = chain(tokens, block_size, scope=(fields.get("lora_name"), salt), seed=seed)
    first = (salt,) if salt and since == 0 else None
    event: dict[str, Any] = {
        "block_hashes": list(hashes[since:]),
        "parent_block_hash": hashes[since - 1] if since else None,
        "token_ids": list(tokens[since * block_size : len(hashes) * block_size]),
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [first, *[None] * (len(hashes) - since - 1)],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return BlockStored(**(event | fields))


def removed(*hashes: Hash, medium: str | None = "GPU", group: int | None = 0) -> BlockRemoved:
    """One copy of each block is gone."""
    return BlockRemoved(list(hashes), medium, group)
