"""Identities of an engine's latest KV event batches: whether a number means the same batch still.

Invariant: bounded; the numbers known are a run without gaps.
"""

from __future__ import annotations

from array import array

KEPT = 64
KNOWN_MAX = 1 << 14  # while a replay runs ahead of what is published


def of(payload: bytes) -> int:
    """A batch begins with the time it was made at; equal only within this process."""
    return hash(payload[:16])


class Fingerprints:
    __slots__ = ("_first", "_known")

    def __init__(self) -> None:
        self._first = 0
        self._known = array("q")

    def add(self, seq: int, payload: bytes) -> None:
        if seq != self._first + len(self._known) or len(self._known) >= KNOWN_MAX:
            self._first, self._known = seq, array("q")
        self._known.append(of(payload))

    def same(self, seq: int, payload: bytes) -> bool:
        """Whether this batch is known under this number."""
        at = seq - self._first
        return 0 <= at < len(self._known) and self._known[at] == of(payload)

    def trim(self) -> None:
        """Forgets all but the latest."""
        spare = len(self._known) - KEPT
        if spare > KEPT:
            del self._known[:spare]
            self._first += spare
