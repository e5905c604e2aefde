"""Looking a text up in a `map`: nginx's rules, pure.

Exact keys first, then the longest `*.name` or `.name`, then the longest `name.*`, then regexes in
file order, else the default. Case does not count but in regexes that say so; a final dot of a host
name does not count either.
"""

from __future__ import annotations

import re

from gateway.conf.model import Map, Template
from gateway.conf.patterns import compile_regex

Groups = dict[str, str]
_NONE: Groups = {}


class MapTable:
    """One map, compiled. `find` is pure: what the value's variables are is the caller's matter."""

    __slots__ = ("_default", "_exact", "_hosts", "_leading", "_regexes", "_trailing")

    def __init__(self, source: Map) -> None:
        self._default = source.default
        self._exact: dict[str, Template] = {}
        self._regexes: list[tuple[re.Pattern[bytes], Template]] = []
        leading: dict[str, Template] = {}
        trailing: dict[str, Template] = {}
        for entry in source.entries:
            if entry.kind == "exact":
                self._exact[entry.key] = entry.value
            elif entry.kind == "leading":
                leading[entry.key] = entry.value
            elif entry.kind == "domain":
                for name in (entry.key, entry.key[1:]):  # ".a.b" as a text fits as well
                    self._exact.setdefault(name, entry.value)
                leading[entry.key] = entry.value
            elif entry.kind == "trailing":
                trailing[entry.key] = entry.value
            else:
                regex = compile_regex(entry.key, ignore_case=entry.kind == "regex_any_case")
                self._regexes.append((regex, entry.value))
        self._leading = sorted(leading.items(), key=lambda row: -len(row[0]))
        self._trailing = sorted(trailing.items(), key=lambda row: -len(row[0]))
        self._hosts = source.hostnames

    def find(self, text: str) -> tuple[Template, Groups]:
        """The value for a text (bytes read as latin-1), and the groups of the regex that fitted."""
        key = text.lower()
        if self._hosts:
            key = key.removesuffix(".")
        found = self._exact.get(key)
        if found is not None:
            return found, _NONE
        for tail, value in self._leading:
            if key.endswith(tail) and len(key) > len(tail):
                return value, _NONE
        for lead, value in self._trailing:
            if key.startswith(lead) and len(key) > len(lead):
                return value, _NONE
        for regex, value in self._regexes:
            match = regex.search(text.encode("latin-1", "replace"))
            if match is not None:
                return value, groups(match)
        return self._default, _NONE


def groups(match: re.Match[bytes]) -> Groups:
    """The variables of a match: "1" to "9" and the names of groups; those that took no part are
    empty, as in nginx.
    """
    found = {str(i): _text(value) for i, value in enumerate(match.groups()[:9], 1)}
    found.update((name, _text(value)) for name, value in match.groupdict().items())
    return found


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("latin-1")
