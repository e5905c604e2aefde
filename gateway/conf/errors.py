"""What is wrong with a configuration, and where: one record per mistake, collected over a whole
run.

Nothing here stops at the first mistake. `Report` is the only way a mistake is recorded, it is
bounded by `ERRORS_MAX`, and the same mistake at the same place is kept once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.conf.model import Place
from gateway.conf.sources import Source, Token

LINE_MAX = 4096  # characters of a source line that is kept to be shown
ERRORS_MAX = 200  # a file with more is the wrong file; the rest is counted, not shown


@dataclass(frozen=True, slots=True)
class ConfigError:
    """One mistake. `chain` names the `include` lines that led here, innermost first.

    `place.line` is 0 where the mistake is the file itself (missing, unreadable). `source_line` is
    the line as written, without its end, or "" where showing it makes no sense."""

    place: Place
    message: str
    hint: str = ""
    chain: tuple[Place, ...] = ()
    severity: str = "error"  # error | warning
    source_line: str = ""


class ConfigErrors(Exception):
    """The configuration is refused. `errors` has at least one entry of severity "error"."""

    def __init__(self, errors: tuple[ConfigError, ...]) -> None:
        super().__init__(f"{len(errors)} configuration errors")
        self.errors = errors

    def __str__(self) -> str:
        return "\n".join(one_line(error) for error in self.errors)


def one_line(error: ConfigError) -> str:
    """The first line of a rendered mistake: `FILE:LINE:COL: error: message`."""
    place = error.place
    where = f"{place.file}:{place.line}:{place.column}" if place.line else place.file
    return f"{printable(where)}: {error.severity}: {printable(error.message)}"


def printable(text: str) -> str:
    """`text` safe for a terminal: control characters, lone surrogates and the like as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def quoted(text: str, limit: int = 80) -> str:
    """A value for a message: in double quotes, cut at `limit` characters."""
    return f'"{text}"' if len(text) <= limit else f'"{text[:limit]}..."'


@dataclass(slots=True)
class Report:
    """Collects the mistakes of one run."""

    found: list[ConfigError] = field(default_factory=list)
    dropped: int = 0
    _seen: set[tuple[Place, tuple[Place, ...], str]] = field(default_factory=set)

    def error(self, at: Token, message: str, hint: str = "", *, after: bool = False) -> None:
        """Record an error at a token, or just behind it (`after`: where something is missing)."""
        self._add(at.source, at.end if after else at.start, message, hint, "error")

    def error_within(self, at: Token, piece: str, message: str, hint: str = "") -> None:
        """Record an error at a piece of a token; at its start where escapes hide the piece."""
        found = at.source.text.find(piece, at.start, at.end)
        self._add(at.source, max(found, at.start), message, hint, "error")

    def warn(self, at: Token, message: str, hint: str = "") -> None:
        self._add(at.source, at.start, message, hint, "warning")

    def error_in(self, source: Source, offset: int, message: str, hint: str = "") -> None:
        """Record an error at a character of a source that has no token there."""
        self._add(source, offset, message, hint, "error")

    def error_of_file(self, file: str, message: str, hint: str = "") -> None:
        """Record an error about a file as a whole."""
        self._keep(ConfigError(Place(file, 0, 0), message, hint))

    def _add(self, source: Source, offset: int, message: str, hint: str, severity: str) -> None:
        if len(self.found) >= ERRORS_MAX:
            self.dropped += 1
            return
        place = source.place(offset)
        line = source.line(place.line)
        if len(line) > LINE_MAX:
            line = ""
        self._keep(ConfigError(place, message, hint, source.chain, severity, line))

    def _keep(self, error: ConfigError) -> None:
        key = (error.place, error.chain, error.message)
        if key in self._seen:
            return
        self._seen.add(key)
        self.found.append(error)

    @property
    def failed(self) -> bool:
        return self.dropped > 0 or any(error.severity == "error" for error in self.found)

    def warnings(self) -> tuple[str, ...]:
        return tuple(one_line(error) for error in self.found if error.severity == "warning")

    def all(self) -> tuple[ConfigError, ...]:
        """Every mistake, in the order of the files; says so where some were dropped."""
        order: dict[tuple[str, tuple[Place, ...]], int] = {}
        for error in self.found:
            order.setdefault((error.place.file, error.chain), len(order))
        found = sorted(
            self.found,
            key=lambda e: (order[e.place.file, e.chain], e.place.line, e.place.column),
        )
        if self.dropped:
            file = found[-1].place.file
            message = f"{self.dropped} more errors are not shown"
            found.append(ConfigError(Place(file, 0, 0), message))
        return tuple(found)
