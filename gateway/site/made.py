"""Variables that a configuration makes itself: `map`, `set`, groups of regular expressions.

Invariant: nothing is worked out before a request uses one of them; then the groups and the `set`
lines of its location at once, in their order, and each map when it is first read. Values are kept
for the request, but for a volatile map's and those read before their moment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from gateway.conf import variables as table
from gateway.conf.model import Location, Map, Server, Template, Var
from gateway.conf.patterns import compile_regex
from gateway.site.maps import MapTable, groups
from gateway.site.sites import host_name
from gateway.site.variables import Maps, compile_text
from native.relay import Lookup

if TYPE_CHECKING:
    from gateway.context import Context

KNOWN_MAX = 1024  # texts of one map whose value is kept
KNOWN_BYTES = 256
Text = Callable[["Context"], str]
_VARYING = frozenset({"msec", "time_iso8601", "time_local", "uri"})
_REACHED: dict[str, Callable[[Context], bool]] = {
    "request": lambda ctx: True,
    "route": lambda ctx: ctx.group is not None,
    "pick": lambda ctx: ctx.engine is not None,
    "reply": lambda ctx: bool(ctx.status or (ctx.leg is not None and ctx.leg.status)),
    "end": lambda ctx: bool(ctx.t_end),
}


class _MapValue:
    """One map, compiled. `lookup` is how requests read it."""

    __slots__ = ("_conf", "_reached", "_source", "_table", "_texts", "lookup")

    def __init__(self, conf: Map) -> None:
        self._conf = conf
        self._reached = _REACHED[conf.when]
        self._table = MapTable(conf)
        self._source: Text = lambda ctx: ""
        self._texts: dict[int, Text] = {}
        self.lookup = Lookup(conf.name, self.work)

    def bind(self, confs: Mapping[str, Map], maps: Maps) -> None:
        """Compiles what it reads, other maps included."""
        conf = self._conf
        self._source = compile_text(conf.source, maps)
        values = (conf.default, *(entry.value for entry in conf.entries))
        self._texts = {id(value): compile_text(value, maps) for value in values}
        parts = conf.source.parts
        single = parts[0].name if len(parts) == 1 and isinstance(parts[0], Var) else None
        self.lookup.read_from(single, self._source, self._settled(confs))

    def _settled(self, confs: Mapping[str, Map]) -> str:
        """From when on its text stays what it is: always, ended or never."""
        names = reads(self._conf.source, confs) - confs.keys()
        if any(name in _VARYING or table.find(name) is None for name in names):
            return "never"
        return "always" if self._conf.when == "request" else "ended"

    def work(self, ctx: Context) -> str:
        """The value where the request has none yet; kept for it unless it is volatile."""
        if ctx.made is None:
            ctx.made = {}
        text = self._source(ctx)
        value = self.lookup.known.get(text)
        if value is None:
            found, matched = self._table.find(text)
            if matched:
                ctx.made.update(matched)
            value = self._texts[id(found)](ctx)
            if not matched and found.constant is not None and len(text) <= KNOWN_BYTES:
                if len(self.lookup.known) >= KNOWN_MAX:
                    self.lookup.known.clear()
                self.lookup.known[text] = value
        if not self._conf.volatile and self._reached(ctx):
            ctx.made[self._conf.name] = value
        return value


def compile_maps(confs: Mapping[str, Map]) -> dict[str, Lookup]:
    """All maps of a configuration; they may read each other."""
    made = {name: _MapValue(conf) for name, conf in confs.items()}
    maps = {name: value.lookup for name, value in made.items()}
    for value in made.values():
        value.bind(confs, maps)
    return maps


class Made:
    """What one location makes. `read` is what the variables' getters call."""

    __slots__ = ("_maps", "_path", "_server", "plain", "sets")

    def __init__(self, location: Location, server: Server, maps: Maps) -> None:
        self._maps = maps
        self._server = _Names(server) if server.name_captures else None
        self._path: re.Pattern[bytes] | None = None
        if location.captures:
            self._path = compile_regex(location.pattern, ignore_case=location.modifier == "~*")
        self.sets: tuple[tuple[object, str, Text], ...] = tuple(
            (line, line.name, compile_text(line.value, maps)) for line in location.sets
        )
        self.plain = self._server is None and self._path is None and not self.sets

    def read(self, ctx: Context, name: str) -> str:
        """The value of a variable; "" for one that was not set on the way."""
        values = ctx.made
        if values is None:
            values = ctx.made = {}
            if not self.plain:
                self._begin(ctx, values, self.sets)
        found = values.get(name)
        if found is not None:
            return found
        entry = self._maps.get(name)
        return "" if entry is None else entry(ctx)

    def _begin(
        self,
        ctx: Context,
        values: dict[str, str],
        sets: Iterable[tuple[object, str, Text]],
    ) -> None:
        if self._server is not None:
            values.update(self._server.groups(ctx.request.get(b"host") or b""))
        match = None if self._path is None else self._path.search(ctx.path)
        if match is not None:
            values.update(groups(match))
        for _, name, text in sets:
            values[name] = text(ctx)

    def follow(self, ctx: Context, former: Made, named: bool) -> None:
        """An error page leads here: what was made so far stays, then this location's lines run;
        behind `@name` without those of the server, which have run.
        """
        if ctx.made is None:
            if not (former.sets or former._path):
                return  # made when it is used
            ctx.made = {}
            former._begin(ctx, ctx.made, former.sets)
        ran = {id(line) for line, _, _ in former.sets} if named else set()
        self._begin(ctx, ctx.made, [line for line in self.sets if id(line[0]) not in ran])


class _Names:
    """The groups of a server's names, where no plain name of it fits."""

    __slots__ = ("_plain", "_regexes")

    def __init__(self, server: Server) -> None:
        self._plain = {name.lower().encode() for name in server.names if not name.startswith("~")}
        self._regexes = [
            compile_regex(name[1:], ignore_case=True)
            for name in server.names
            if name.startswith("~")
        ]

    def groups(self, host: bytes) -> dict[str, str]:
        name = host_name(host)
        if name not in self._plain:
            for regex in self._regexes:
                match = regex.search(name)
                if match is not None:
                    return groups(match)
        return {}


def reads(template: Template, maps: Mapping[str, Map]) -> set[str]:
    """The names of all variables that a text depends on, through maps too."""
    found: set[str] = set()
    waiting = [template]
    while waiting:
        for part in waiting.pop().parts:
            if isinstance(part, Var) and part.name not in found:
                found.add(part.name)
                entry = maps.get(part.name)
                if entry is not None:
                    waiting += [entry.source, entry.default, *(e.value for e in entry.entries)]
    return found


def families(names: Iterable[str]) -> set[str]:
    """The table's names of variables: "http_" for `http_host`."""
    return {found.name for found in map(table.find, names) if found is not None}
