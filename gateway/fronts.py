"""What each listening address serves: the configuration's servers, compiled to plans and sorted
by address.

Invariant: building one either succeeds whole or raises before anything that runs has changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.catalog import Catalog
from gateway.conf.model import Config, Listen, Location, Proxy, Server
from gateway.plan import Plan
from gateway.sites import Site

if TYPE_CHECKING:
    from gateway.engines import EngineTable
    from gateway.logs import Writer
    from gateway.stats import Statistics

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


def schemes(config: Config) -> dict[str, set[str]]:
    """Upstream name -> the schemes that locations speak to it."""
    found: dict[str, set[str]] = {}
    for server in config.servers:
        for location in server.locations:
            if isinstance(location.handler, Proxy):
                names = (
                    [location.handler.upstream] if location.handler.upstream else config.upstreams
                )
                for name in names:
                    found.setdefault(name, set()).add(location.handler.scheme)
    return found


def build(config: Config, table: EngineTable, stats: Statistics, writer: Writer) -> Fronts:
    """Compiles a configuration. Raises OSError where a log cannot be opened."""
    catalogs = {name: Catalog([group]) for name, group in table.groups.items()}
    catalogs[""] = Catalog(table.groups.values())
    compiled: dict[int, list[Plan]] = {}
    for server in config.servers:
        compiled[id(server)] = [
            _plan(location, server, catalogs, stats, writer) for location in server.locations
        ]
    fronts = Fronts(catalogs=tuple(catalogs.values()))
    for address, members in _by_address(config).items():
        first = members[0][1]
        nowhere = _plan(_nowhere(first), first, catalogs, stats, writer)
        rows = [
            (server.names, at == 0, _rows(server, compiled[id(server)]))
            for at, (_, server) in enumerate(members)
        ]
        plans = tuple(plan for _, server in members for plan in compiled[id(server)])
        servers = tuple(server for _, server in members)
        fronts.by_address[address] = Front(members[0][0], servers, Site(rows), nowhere, plans)
    return fronts


def _plan(
    location: Location,
    server: Server,
    catalogs: dict[str, Catalog],
    stats: Statistics,
    writer: Writer,
) -> Plan:
    plan = Plan(location, server)
    plan.open_logs(writer)
    plan.count_in(server, stats)
    if isinstance(location.handler, Proxy):
        plan.attach(server, catalogs[location.handler.upstream], stats)
    return plan


def _rows(server: Server, plans: list[Plan]) -> list[tuple[str, str, Plan]]:
    return [
        (location.modifier, location.pattern, plan)
        for location, plan in zip(server.locations, plans, strict=True)
    ]


def _nowhere(server: Server) -> Location:
    """A location without a handler that logs where the server's first one does."""
    logs = server.locations[0].access_logs if server.locations else ()
    return Location("", "(none)", "none", access_logs=logs)


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
