"""What each worker thinks of each engine, and why, for all to see: a record per worker and engine
in memory that all share.

Invariants: a process writes to its own row, and a row is wiped when its process has ended; 0 says
nothing, and of several words the highest counts. One row more holds what was last put into the log,
by whichever worker. A reason that is just being replaced may be read as none or as a mixture: it is
for people.
"""

from __future__ import annotations

import mmap

WORD, LENGTH, TEXT = 0, 1, 2  # places in a record
REASON_MAX = 190  # bytes of a reason; what is longer is cut
RECORD = TEXT + REASON_MAX


class Board:
    """`rows` workers, `columns` engines (their places in the ledger)."""

    def __init__(self, rows: int, columns: int, row: int | None = None) -> None:
        self._span = columns * RECORD
        self._rows = rows
        self._memory = mmap.mmap(-1, (rows + 1) * self._span)  # anonymous: inherited over fork
        self._row = row

    def bind(self, row: int) -> None:
        self._row = row

    def retire(self, row: int) -> None:
        start = row * self._span
        for at in range(start, start + self._span, RECORD):
            if self._memory[at + WORD]:  # the others have no memory yet
                self._memory[at + WORD] = self._memory[at + LENGTH] = 0

    def say(self, column: int, word: int, reason: str = "") -> None:
        """This worker's word (0..255) on an engine."""
        assert self._row is not None
        at = self._row * self._span + column * RECORD
        text = reason.encode()[:REASON_MAX]
        self._memory[at + LENGTH] = 0
        self._memory[at + TEXT : at + TEXT + len(text)] = text
        self._memory[at + LENGTH] = len(text)
        self._memory[at + WORD] = word

    def speak(self, column: int, word: int) -> bool:
        """Whether this word on an engine is new to the log; it is not, from now on."""
        at = self._rows * self._span + column * RECORD
        if self._memory[at] == word:
            return False
        self._memory[at] = word
        return True

    def forget(self, column: int) -> None:
        """The engine has left."""
        self.say(column, 0)
        self.speak(column, 0)

    def highest(self, column: int) -> tuple[int, str]:
        """The highest word of all workers, and its reason."""
        words = self._memory[column * RECORD : self._rows * self._span : self._span]
        word = max(words)
        at = words.index(word) * self._span + column * RECORD
        length = self._memory[at + LENGTH]
        text = self._memory[at + TEXT : at + TEXT + length]
        return word, text.decode(errors="replace")
