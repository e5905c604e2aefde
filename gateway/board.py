"""What each worker thinks of each engine, for all to see: one byte per worker and engine in memory
that all share.

Invariants: a process writes to its own row, and a row is wiped when its process has ended; 0 says
nothing, and of several words the highest counts. One row more holds what was last put into the log,
by whichever worker.
"""

from __future__ import annotations

import mmap


class Board:
    """`rows` workers, `columns` engines (their places in the ledger)."""

    def __init__(self, rows: int, columns: int, row: int | None = None) -> None:
        self._columns = columns
        self._rows = rows
        self._memory = mmap.mmap(-1, (rows + 1) * columns)  # anonymous: inherited over fork
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

    def speak(self, column: int, word: int) -> bool:
        """Whether this word on an engine is new to the log; it is not, from now on."""
        at = self._rows * self._columns + column
        if self._memory[at] == word:
            return False
        self._memory[at] = word
        return True

    def forget(self, column: int) -> None:
        """The engine has left."""
        self.say(column, 0)
        self.speak(column, 0)

    def highest(self, column: int) -> int:
        return max(self._memory[column : self._rows * self._columns : self._columns])
