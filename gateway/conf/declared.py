"""The variables a file makes itself: found before anything is checked, since a name may be used
before it is made, and in another file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.conf.parser import Statement
from gateway.conf.patterns import captures
from gateway.conf.units import BadValue, variable
from gateway.conf.variables import Known


def declared(statements: Iterable[Statement]) -> Known:
    """The table's variables and those of `map`, `set` and regular expressions in a whole file."""
    known = Known()
    for name in _names(statements):
        known.own.setdefault(name, "request")
    return known


def _names(statements: Iterable[Statement]) -> Iterator[str]:
    for statement in statements:
        words = [token.text for token in statement.args]
        name = statement.name.text
        if name == "set" and words:
            yield from _variable(words[0])
        elif name == "map" and words:
            yield from _variable(words[-1])
            for line in statement.block or ():
                yield from _groups(line.name.text)
        elif name in ("location", "server_name"):
            for word in words:
                yield from _groups(word)
        if statement.block is not None:
            yield from _names(statement.block)


def _variable(word: str) -> Iterator[str]:
    try:
        yield variable(word)
    except BadValue:
        return


def _groups(pattern: str) -> Iterator[str]:
    if "(" not in pattern:
        return
    try:
        yield from captures(pattern.lstrip("~*"))
    except BadValue:
        return
