"""In-flight load per engine: a thin front of `native.Ledger`, bound to this worker.

Invariant: every `take` is paired with one `give`; a give of an engine that has been removed
since, or one too many, is ignored and counted natively, so a count never falls below zero.
"""

from __future__ import annotations

import native._core

ENGINES_MAX = 4096


class Ledger:
    """`core` is what the native picks read."""

    __slots__ = ("core", "give", "in_flight", "remove", "take")

    def __init__(self, workers: int = 1, worker: int = 0, fd: int | None = None) -> None:
        self.core = native._core.Ledger(workers, ENGINES_MAX, fd)
        self.core.bind(worker)
        # Bound methods of the native object: nothing stands between a request and its count.
        self.take = self.core.acquire
        self.give = self.core.release
        self.in_flight = self.core.inflight
        self.remove = self.core.remove_engine

    def add(self) -> int:
        """The handle of a new engine. Raises ValueError when there are ENGINES_MAX."""
        return self.core.add_engine()
