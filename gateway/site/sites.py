"""Which server block and which location a request belongs to: nginx's rules, pure.

Server: the listener's server whose `server_name` fits the Host best (exact, then `*.name`, then
`name.*`, then regex in file order), else the listener's default. Location: `=` first, then the
longest prefix; a `^~` prefix ends the search, otherwise regexes in file order are tried before
that prefix is taken. Locations inside the longest prefix come before the regexes around it; one
that an exact or regex pattern found there stands. Matching looks at the plain path
(`gateway.paths`); results for paths seen before come from a bounded table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from gateway.conf.patterns import compile_regex
from gateway.paths import plain

T = TypeVar("T")
# (modifier, pattern, value), and where there are locations inside, their rows.
Row = tuple[str, str, T] | tuple[str, str, T, Sequence[Any]]
ServerRow = tuple[Sequence[str], bool, Iterable[Row[T]]]

REMEMBERED_MAX = 4096  # (host, path) pairs whose result is kept
REMEMBERED_PATH_BYTES = 256


class LocationTable(Generic[T]):
    """The locations of one block. Named ones (`@name`) are never matched by a path."""

    __slots__ = ("_exact", "_prefixes", "_regexes", "named")

    def __init__(self, locations: Iterable[Row[T]]) -> None:
        """`locations`: (modifier, pattern, value) in file order, with the rows of the locations
        inside as a fourth item where there are any. Raises BadValue.
        """
        self._exact: dict[bytes, T] = {}
        self._regexes: list[tuple[re.Pattern[bytes], T, LocationTable[T] | None]] = []
        self.named: dict[str, T] = {}
        prefixes: list[tuple[bytes, bool, T, LocationTable[T] | None]] = []
        for modifier, pattern, value, *inner in locations:
            raw = pattern.encode()
            inside = LocationTable(inner[0]) if inner and inner[0] else None
            if modifier == "=":
                self._exact.setdefault(raw, value)
            elif modifier in ("", "^~"):
                prefixes.append((raw, modifier == "^~", value, inside))
            elif modifier == "@":
                self.named[pattern] = value
            else:
                regex = compile_regex(pattern, ignore_case=modifier == "~*")
                self._regexes.append((regex, value, inside))
        self._prefixes = sorted(prefixes, key=lambda row: -len(row[0]))

    def match(self, path: bytes) -> T | None:
        return self._find(path)[0]

    def _find(self, path: bytes) -> tuple[T | None, bool]:
        """(location or None, whether regexes of the blocks around no longer count). Depth is that
        of the blocks, which the configuration bounds.
        """
        if path in self._exact:
            return self._exact[path], True
        best: T | None = None
        final = False
        for prefix, ends, value, inside in self._prefixes:
            if path.startswith(prefix):
                final = ends
                found, decided = inside._find(path) if inside else (None, False)
                best = value if found is None else found
                if decided:
                    return best, True
                break
        if not final:
            for regex, value, inside in self._regexes:
                if regex.search(path):
                    found = inside._find(path)[0] if inside else None
                    return value if found is None else found, True
        return best, False


class Site(Generic[T]):
    """The servers of one listener. `find` is what the pipeline calls for every request."""

    __slots__ = (
        "_default", "_exact", "_leading", "_regexes", "_seen", "_single", "_trailing", "tables",
    )  # fmt: skip

    def __init__(self, servers: Sequence[ServerRow[T]]) -> None:
        """`servers`: (names, is default, locations) in file order; the first is the default
        unless one says so.
        """
        self._exact: dict[bytes, LocationTable[T]] = {}
        self._leading: list[tuple[bytes, LocationTable[T]]] = []
        self._trailing: list[tuple[bytes, LocationTable[T]]] = []
        self._regexes: list[tuple[re.Pattern[bytes], LocationTable[T]]] = []
        self._seen: dict[tuple[bytes, bytes], tuple[T | None, bytes | None]] = {}
        tables = []
        default: LocationTable[T] | None = None
        for names, is_default, locations in servers:
            table = LocationTable(locations)
            tables.append(table)
            for name in names:
                self._add_name(name, table)
            if is_default and default is None:
                default = table
        self._default = default or tables[0]
        self.tables = tuple(tables)  # one per server, in their order
        self._single = len(tables) == 1
        self._leading.sort(key=lambda row: -len(row[0]))
        self._trailing.sort(key=lambda row: -len(row[0]))

    def _add_name(self, name: str, table: LocationTable[T]) -> None:
        raw = name.lower().encode()
        if name.startswith("~"):
            self._regexes.append((compile_regex(name[1:], ignore_case=True), table))
        elif raw.startswith(b"*."):
            self._leading.append((raw[1:], table))
        elif raw.startswith(b"."):
            self._exact.setdefault(raw[1:], table)
            self._leading.append((raw, table))
        elif raw.endswith(b".*"):
            self._trailing.append((raw[:-1], table))
        else:
            self._exact.setdefault(raw, table)

    def server(self, host: bytes) -> LocationTable[T]:
        """The server for a Host header's value (port, case and a final dot do not count)."""
        if self._single:
            return self._default
        name = host_name(host)
        if name in self._exact:
            return self._exact[name]
        for tail, table in self._leading:
            if name.endswith(tail) and len(name) > len(tail):
                return table
        for lead, table in self._trailing:
            if name.startswith(lead) and len(name) > len(lead):
                return table
        for regex, table in self._regexes:
            if regex.search(name):
                return table
        return self._default

    def find(self, host: bytes, path: bytes) -> tuple[T | None, bytes | None]:
        """(location or None, plain path or None); a plain path of None is a 400."""
        key = (b"", path) if self._single else (host, path)
        found = self._seen.get(key)
        if found is None:
            flat = plain(path)
            found = (None, None) if flat is None else (self.server(host).match(flat), flat)
            if len(path) <= REMEMBERED_PATH_BYTES and len(host) <= REMEMBERED_PATH_BYTES:
                if len(self._seen) >= REMEMBERED_MAX:
                    self._seen.clear()
                self._seen[key] = found
        return found


def host_name(host: bytes) -> bytes:
    """A Host header's name: lower case, without port and final dot. IPv6 keeps its brackets."""
    if host.startswith(b"["):
        return host[: host.find(b"]") + 1].lower()
    return host.partition(b":")[0].lower().rstrip(b".")


def upstream_target(
    pattern: bytes, uri: bytes | None, raw: bytes, path: bytes, query: bytes | None
) -> bytes:
    """The request target an engine gets.

    Without a URI part in `proxy_pass`: as sent. With one: the matched prefix of the plain path is
    replaced by it and the rest is escaped again.
    """
    if uri is None:
        return raw
    rest = path[len(pattern) :] if path.startswith(pattern) else b""
    target = uri + _ESCAPE.sub(lambda m: b"%%%02X" % m.group()[0], rest)
    return target if query is None else target + b"?" + query


_ESCAPE = re.compile(rb"[^A-Za-z0-9\-._~!$&'()*+,;=:@/]")
