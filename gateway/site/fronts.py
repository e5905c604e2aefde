"""What each listening address serves: the configuration's servers, compiled to plans and sorted
by address.

Invariant: building one either succeeds whole or raises before anything that runs has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.conf.model import Config, Listen, Location, Proxy, ProxyTls, Server
from gateway.conf.model_rules import PLAIN_TLS
from gateway.fleet.catalog import Catalog
from gateway.fleet.upstream import Way
from gateway.site.limits import Zones
from gateway.site.made import compile_maps
from gateway.site.plan import Around, Plan, labels
from gateway.site.secure import Secure
from gateway.site.sites import LocationTable, Row, Site

if TYPE_CHECKING:
    from gateway.fleet.engines import EngineTable
    from gateway.logs import Sink, Writer
    from gateway.stats import Names, Statistics

Address = tuple[str, int, str]


@dataclass(slots=True)
class Front:
    """One listening address. `nowhere` is the plan of requests that no location takes."""

    listen: Listen
    servers: tuple[Server, ...]  # the default one first
    site: Site[Plan]
    nowhere: Plan
    plans: tuple[Plan, ...]

    @property
    def default(self) -> Server:
        return self.servers[0]

    @property
    def is_admin(self) -> bool:
        return any(plan.kind == "admin" for plan in self.plans)


@dataclass(slots=True)
class Fronts:
    by_address: dict[Address, Front] = field(default_factory=dict)
    catalogs: tuple[Catalog, ...] = ()

    def sinks(self) -> set[Sink]:
        """The access logs and recordings that are written to."""
        plans = [(*front.plans, front.nowhere) for front in self.by_address.values()]
        found = {sink for some in plans for plan in some for _, sink, _ in plan.logs}
        found |= {plan.trace.sink for some in plans for plan in some if plan.trace is not None}
        return found


def schemes(config: Config) -> dict[str, set[str]]:
    """Upstream name -> the schemes that locations speak to it."""
    found: dict[str, set[str]] = {}
    for server in config.servers:
        for location in _flat(server.locations):
            if isinstance(location.handler, Proxy):
                names = (
                    [location.handler.upstream] if location.handler.upstream else config.upstreams
                )
                for name in names:
                    found.setdefault(name, set()).add(location.handler.scheme)
    return found


def series(config: Config) -> set[Names]:
    """The rows of statistics that a configuration counts in."""
    found: set[Names] = set()
    for server in config.servers:
        for location in (*_flat(server.locations), _nowhere(server)):
            names = [""]
            if isinstance(location.handler, Proxy):
                upstream = location.handler.upstream
                names += [upstream] if upstream else config.upstreams
            found.update((*labels(server, location), name) for name in names)
    return found


def ways(config: Config) -> dict[str, Way]:
    """Upstream name -> the TLS of the gateway's own requests to it (health, models): that of the
    locations that send clients there by https, one that verifies first. Raises OSError.
    """
    found: dict[str, ProxyTls] = {}
    for server in config.servers:
        for location in _flat(server.locations):
            proxy, conf = location.handler, location.proxy_tls
            if not isinstance(proxy, Proxy) or proxy.scheme != "https" or conf == PLAIN_TLS:
                continue
            for name in [proxy.upstream] if proxy.upstream else config.upstreams:
                if name not in found or (conf.verify and not found[name].verify):
                    found[name] = conf
    return {name: Secure(conf).way(name) for name, conf in found.items()}


class Compiler:
    """Makes plans of one configuration's locations."""

    def __init__(
        self, config: Config, table: EngineTable, stats: Statistics, writer: Writer, zones: Zones
    ) -> None:
        self.catalogs = {name: Catalog([group]) for name, group in table.groups.items()}
        self.catalogs[""] = Catalog(table.groups.values())
        self._around = Around(config, compile_maps(config.maps), zones)
        self._stats = stats
        self._writer = writer
        self._secure: dict[ProxyTls, Secure] = {}

    def plan(self, location: Location, server: Server) -> Plan:
        plan = Plan(location, server, self._around)
        plan.open_logs(self._writer)
        plan.count_in(server, self._stats)
        proxy = location.handler
        if isinstance(proxy, Proxy):
            plan.attach(server, self.catalogs[proxy.upstream], self._stats)
            plan.catalogs = self.catalogs
            if proxy.scheme == "https" and location.proxy_tls != PLAIN_TLS:
                plan.secure = self._tls(location.proxy_tls)
        return plan

    def _tls(self, conf: ProxyTls) -> Secure:
        if conf not in self._secure:
            self._secure[conf] = Secure(conf)
        return self._secure[conf]

    def rows(self, locations: tuple[Location, ...], server: Server) -> list[Row[Plan]]:
        """Rows of `LocationTable`, those of locations inside with them."""
        return [
            (x.modifier, x.pattern, self.plan(x, server), self.rows(x.locations, server))
            for x in locations
        ]


def build(
    config: Config,
    table: EngineTable,
    stats: Statistics,
    writer: Writer,
    zones: Zones | None = None,
) -> Fronts:
    """Compiles a configuration. Raises OSError where a log or certificate cannot be opened."""
    zones = Zones() if zones is None else zones
    zones.open(config)
    compiler = Compiler(config, table, stats, writer, zones)
    rows = {id(server): compiler.rows(server.locations, server) for server in config.servers}
    fronts = Fronts(catalogs=tuple(compiler.catalogs.values()))
    for address, members in _by_address(config).items():
        first = members[0][1]
        nowhere = compiler.plan(_nowhere(first), first)
        site = Site(
            [(server.names, at == 0, rows[id(server)]) for at, (_, server) in enumerate(members)]
        )
        for (_, server), home in zip(members, site.tables, strict=True):
            _settle(rows[id(server)], home)
        nowhere.named, nowhere.locate = site.tables[0].named, site.tables[0].match
        plans = tuple(plan for _, server in members for plan in _plans(rows[id(server)]))
        servers = tuple(server for _, server in members)
        fronts.by_address[address] = Front(members[0][0], servers, site, nowhere, plans)
    return fronts


def _settle(rows: list[Row[Plan]], home: LocationTable[Plan]) -> None:
    """Tells each plan its server's other locations, for `error_page`."""
    for plan in _plans(rows):
        plan.named, plan.locate = home.named, home.match


def _plans(rows: Iterable[Row[Plan]]) -> Iterator[Plan]:
    for _, _, plan, *inner in rows:
        yield plan
        if inner:
            yield from _plans(inner[0])


def _flat(locations: Iterable[Location]) -> Iterator[Location]:
    for location in locations:
        yield location
        yield from _flat(location.locations)


def _nowhere(server: Server) -> Location:
    """A location without a handler that logs where the server's first one does."""
    logs = server.locations[0].access_logs if server.locations else ()
    return Location("", "(none)", "none", access_logs=logs, error_pages=server.error_pages)


def _by_address(config: Config) -> dict[Address, list[tuple[Listen, Server]]]:
    """Servers by socket, the default one first, the others in file order."""
    found: dict[Address, list[tuple[Listen, Server]]] = {}
    for server in config.servers:
        for listen in server.listens:
            key = (listen.host, listen.port, listen.unix_path)
            found.setdefault(key, []).append((listen, server))
    for members in found.values():
        members.sort(key=lambda member: not member[0].default_server)
    return found
