"""Which engine holds a stored response: `previous_response_id` and `/v1/responses/ID` live in one
engine.

Invariant: bounded in number and age; an id that is not known here goes to any engine, which then
says so itself. Each worker has a map of its own, and tells the others what it puts there.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import EngineTable

KEPT_MAX = 100_000  # ids
KEPT_S = 3600.0
UNTOLD_MAX = 10_000  # between two turns of the worker's timer
PREFIX = b"/v1/responses/"
ID_PREFIX = b"resp_"


class ResponseMap:
    """id → (upstream, address), least recently used out first."""

    __slots__ = ("_kept", "_kept_max", "_kept_s", "_new", "_telling")

    def __init__(self, kept_max: int = KEPT_MAX, kept_s: float = KEPT_S) -> None:
        self._kept: OrderedDict[bytes, tuple[str, str, float]] = OrderedDict()
        self._new: list[tuple[bytes, str, str]] = []  # not yet told
        self._telling = False
        self._kept_max = kept_max
        self._kept_s = kept_s

    def put(self, response_id: bytes, engine: Engine, now: float) -> None:
        self.hear(response_id, engine.upstream, engine.address, now)
        if self._telling and len(self._new) < UNTOLD_MAX:
            self._new.append((response_id, engine.upstream, engine.address))

    def hear(self, response_id: bytes, upstream: str, address: str, now: float) -> None:
        """What this worker or another has learnt."""
        self._kept[response_id] = (upstream, address, now)
        self._kept.move_to_end(response_id)
        if len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)

    def untold(self) -> list[tuple[bytes, str, str]]:
        """What was put since the last call, for the other workers; from the first call on."""
        self._telling = True
        new, self._new = self._new, []
        return new

    def find(self, response_id: bytes, table: EngineTable, now: float) -> Engine | None:
        """The engine that made it, or None where that is not known (any more)."""
        found = self._kept.get(response_id)
        if found is None:
            return None
        upstream, address, made = found
        group = table.groups.get(upstream)
        engine = None if group is None else group.by_address.get(address)
        if engine is None or now - made > self._kept_s:
            del self._kept[response_id]
            return None
        self._kept.move_to_end(response_id)
        return engine

    def __len__(self) -> int:
        return len(self._kept)


def id_in_path(path: bytes) -> bytes | None:
    """ID of `/v1/responses/ID[/cancel]`."""
    if not path.startswith(PREFIX):
        return None
    return path[len(PREFIX) :].partition(b"/")[0] or None
