"""In-flight load per engine: a thin front of `native.Ledger`, bound to this worker.

Invariants: every `take` is paired with one `give`; a give of an engine that has been removed
since, or one too many, is ignored and counted natively, so a count never falls below zero. An
engine that left keeps its handle until nothing is in flight there, and gets the same one back if
it returns before.
"""

from __future__ import annotations

from collections.abc import Container

import native._core

ENGINES_MAX = 4096
# Words of an engine's health.
UNKNOWN, WELL, ILL = 0, 1, 2

Key = tuple[str, str]  # upstream, address


def place(handle: int) -> int:
    """Which of the ENGINES_MAX places a handle stands for; a place is used again."""
    return handle & 0xFFFFFFFF


class Ledger:
    """`core` is what the native picks read. `handles` is told to workers by the master: only the
    process that owns the table makes new ones.
    """

    __slots__ = ("core", "give", "handles", "in_flight", "take")

    def __init__(self, workers: int = 1, worker: int | None = 0) -> None:
        """`worker` None: bound later, by `bind`."""
        self.core = native._core.Ledger(workers, ENGINES_MAX)
        self.handles: dict[Key, int] = {}
        if worker is not None:
            self.core.bind(worker)
        # Bound methods of the native object: nothing stands between a request and its count.
        self.take = self.core.acquire
        self.give = self.core.release
        self.in_flight = self.core.inflight

    def open(self, upstream: str, address: str) -> int:
        """The handle of an engine. Raises ValueError when there are ENGINES_MAX."""
        key = upstream, address
        if key not in self.handles:
            self.handles[key] = self.core.add_engine()
        return self.handles[key]

    def sweep(self, present: Container[Key]) -> list[Key]:
        """Frees the handles of engines that are not `present` and have nothing in flight; returns
        those that still have.
        """
        waiting = []
        for key, handle in list(self.handles.items()):
            if key in present:
                continue
            if self.in_flight(handle):
                waiting.append(key)
            else:
                del self.handles[key]
                self.core.remove_engine(handle)
        return waiting
