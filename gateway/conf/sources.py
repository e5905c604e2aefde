"""Configuration text and the tokens cut from it: every token knows its source, so every place is
exact.

A source is one reading of one file (a file included twice is two sources with different chains).
Offsets are characters; lines and columns are counted from 1, a line ends at `\\n` only, as in
nginx.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from gateway.conf.model import Place

WORD, SEMICOLON, OPEN, CLOSE, END = "word", ";", "{", "}", "end"


@dataclass(slots=True, eq=False)
class Source:
    """The text of one file. `chain`: the places of the `include` lines that led to it, innermost
    first."""

    name: str
    text: str
    chain: tuple[Place, ...] = ()
    _starts: list[int] = field(default_factory=list)

    def place(self, offset: int) -> Place:
        starts = self._line_starts()
        line = bisect_right(starts, offset)
        return Place(self.name, line, offset - starts[line - 1] + 1)

    def line(self, number: int) -> str:
        """Line `number` (from 1) without its end."""
        starts = self._line_starts()
        if not 1 <= number <= len(starts):
            return ""
        start = starts[number - 1]
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)].rstrip("\r")

    def _line_starts(self) -> list[int]:
        if not self._starts:
            starts, at = [0], self.text.find("\n")
            while at >= 0:
                starts.append(at + 1)
                at = self.text.find("\n", at + 1)
            self._starts = starts
        return self._starts


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A word or a sign. `text` is the word's value, quotes and escapes undone; `start` and `end`
    span what was written, quotes included."""

    kind: str
    text: str
    source: Source
    start: int
    end: int
    quoted: bool = False

    @property
    def place(self) -> Place:
        return self.source.place(self.start)

    @property
    def line(self) -> int:
        return self.place.line
