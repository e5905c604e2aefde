"""What each worker thinks of each engine, for all to see: one byte per worker and engine in memory
that all share.

Invariants: a process writes to its own row only; a row is wiped when its process has ended; 0 says
nothing, and of several words the highest counts.
"""

from __future__ import annotations

import mmap


class Board:
    """`rows` workers, `columns` engines (their places in the ledger)."""

    def __init__(self, rows: int, columns: int, row: int | None = None) -> None:
        self._columns = columns
        self._rows = rows
        self._memory = mmap.mmap(-1, rows * columns)  # anonymous: inherited over fork
        self._row = row

    def bind(self, row: int) -> None:
        self._row = row

    def retire(self, row: int) -> None:
        start = row * self._columns
        self._memory[start : start + self._columns] = bytes(self._columns)

    def say(self, column: int, word: int) -> None:
        """This worker's word (0..255) on an engine."""
        assert self._row is not None
        self._memory[self._row * self._columns + column] = word

    def highest(self, column: int) -> int:
        return max(self._memory[column :: self._columns])

    def counts(self, column: int) -> dict[int, int]:
        """How many workers say which word, 0 apart."""
        words = self._memory[column :: self._columns]
        return {word: words.count(word) for word in set(words) - {0}}
