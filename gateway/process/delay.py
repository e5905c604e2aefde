"""How late the event loop of each worker runs what is due: a histogram per worker, in memory that
all share.

Invariants: a process writes to its own row, one reader sums nothing, and a row goes on counting for
the next process in its slot, so no count goes back.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left

# Seconds. uvloop counts in milliseconds: less than one tells nothing.
BOUNDS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
_COUNTS = len(BOUNDS_S) + 1  # the last is above all bounds
_ROW = _COUNTS + 1  # and the sum, in nanoseconds


class Delays:
    """`rows` workers."""

    def __init__(self, rows: int, row: int | None = None) -> None:
        self._memory = mmap.mmap(-1, rows * _ROW * 8)  # anonymous: inherited over fork
        self._cells = memoryview(self._memory).cast("Q")
        self._rows = rows
        self._row = row

    def bind(self, row: int) -> None:
        self._row = row

    def observe(self, late_s: float) -> None:
        """Something ran so much later than it was due."""
        assert self._row is not None
        late_s = max(late_s, 0.0)
        at = self._row * _ROW
        self._cells[at + bisect_left(BOUNDS_S, late_s)] += 1
        self._cells[at + _COUNTS] += int(late_s * 1e9)

    def read(self) -> dict[int, tuple[list[int], float]]:
        """By row, of those that counted anything: values per bucket, and their sum in seconds."""
        found = {}
        for row in range(self._rows):
            counts = self._cells[row * _ROW : row * _ROW + _COUNTS].tolist()
            if any(counts):
                found[row] = counts, self._cells[row * _ROW + _COUNTS] / 1e9
        return found
