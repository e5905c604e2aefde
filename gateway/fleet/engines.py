"""The engines there are: one `Engine` per (upstream, address), grouped by upstream, over reloads
the same.

Invariants: an engine keeps its in-flight count, marks and connections for as long as its address
is in its upstream; state changes are logged once.
"""

from __future__ import annotations

from collections.abc import Iterable
from ssl import SSLContext
from typing import TYPE_CHECKING

from gateway.conf.model import EngineLine, Upstream
from gateway.fleet.engine import Engine
from gateway.fleet.ledger import UNKNOWN, WELL, Key, Ledger
from gateway.fleet.team import Team
from gateway.log_lines import NOTICE
from gateway.logs import log
from gateway.site import addresses
from gateway.site.variables import compile_header

if TYPE_CHECKING:
    from native._core import Index


class Group:
    """One upstream."""

    __slots__ = ("by_address", "conf", "engines", "key", "name", "successor", "teams")

    name: str
    successor: Group | None
    teams: tuple[Team, ...]

    def __init__(
        self,
        conf: Upstream,
        engines: tuple[Engine, ...],
        ledger: Ledger,
        former: Group | None,
        index: Index | None = None,
    ) -> None:
        self.name = conf.name
        self.conf = conf
        self.engines = engines
        self.successor = None  # the same upstream in the next configuration
        if former is not None:
            former.successor = self
        key = conf.balance.key or conf.kv.session
        self.key = None if key is None else compile_header(key)
        if conf.balance.method == "ip_hash":
            self.key = addresses.network
        self.by_address = {engine.address: engine for engine in engines}
        teams = []
        for at, backup in enumerate((False, True)):
            members = [engine for engine in engines if engine.line.backup == backup]
            if members or not backup:
                known = former.teams[at] if former and at < len(former.teams) else None
                teams.append(Team(members, ledger, known))
        self.teams = tuple(teams)
        for team in teams:
            team.group = self
            team.seat(ledger, index)

    def latest(self) -> Group:
        """This upstream as it is configured now: picks of older plans are made there."""
        group = self
        while group.successor is not None:
            group = group.successor
        return group

    def failed(self, engine: Engine, now: float, why: str) -> None:
        """A passive failure of an engine. A lone engine is never benched (nginx)."""
        if len(self.engines) == 1:
            return
        if engine.marks.fail(now):
            log.warning(
                "upstream `%s`: engine %s is benched for %gs after %d failures, the last: %s",
                self.name, engine.address, engine.line.fail_timeout_s, engine.marks.fails, why,
            )  # fmt: skip
        engine.team.refresh(now)

    def succeeded(self, engine: Engine, now: float) -> None:
        if not engine.marks.fails:
            return
        if engine.marks.succeed():
            log.log(NOTICE, "upstream `%s`: engine %s answers again", self.name, engine.address)
        engine.team.refresh(now)

    def set_health(self, engine: Engine, healthy: bool, why: str, now: float) -> None:
        """What active checks found."""
        engine.why = "" if healthy else why
        engine.checked = True
        if engine.healthy == healthy:
            return
        engine.healthy = healthy
        engine.team.refresh(now)
        if healthy:
            log.log(NOTICE, "upstream `%s`: engine %s is healthy", self.name, engine.address)
        else:
            log.error("upstream `%s`: engine %s fails its health check: %s",
                      self.name, engine.address, why)  # fmt: skip

    def hear_health(self, engine: Engine, word: int, now: float) -> None:
        """What the monitor found, who has logged it."""
        if word == UNKNOWN:
            return
        engine.checked = True
        healthy = word == WELL
        if engine.healthy != healthy:
            engine.healthy = healthy
            engine.why = "" if healthy else engine.why
            engine.team.refresh(now)


class EngineTable:
    """Every upstream. `apply` takes a new configuration and keeps what stays."""

    def __init__(
        self, ledger: Ledger, tls: SSLContext | None = None, index: Index | None = None
    ) -> None:
        """`index`: of what lies in the engines' caches; None in a process that routes nothing."""
        self.ledger = ledger
        self.index = index
        self.groups: dict[str, Group] = {}
        self._tls = tls

    def apply(
        self, upstreams: Iterable[Upstream], schemes: dict[str, set[str]], now: float
    ) -> None:
        """`schemes`: upstream name -> the schemes its locations speak. Removed engines drain: who
        owns the ledger takes their handles back (`sweep`). ValueError when there are too many.
        """
        known = {(e.upstream, e.address): e for g in self.groups.values() for e in g.engines}
        groups: dict[str, Group] = {}
        placed = [(g, e) for g in self.groups.values() for e in g.engines if e.index_slot >= 0]
        slots = {_cache(g.conf, e.line): e.index_slot for g, e in placed}
        for conf in upstreams:
            engines = tuple(
                self._engine(conf, line, known.pop((conf.name, line.address), None))
                for line in conf.engines
            )
            for engine in engines:
                if self.index is not None and conf.kv.aware and engine.index_slot < 0:
                    cache = _cache(conf, engine.line)
                    if cache not in slots:
                        slots[cache] = self.index.add_engine(conf.kv.block_size)
                    engine.index_slot = slots[cache]
                self._open_pools(engine, conf, schemes.get(conf.name, {"http"}))
            former = self.groups.get(conf.name)
            groups[conf.name] = made = Group(conf, engines, self.ledger, former, self.index)
            for team in made.teams:
                team.refresh(now)
        self.groups = groups
        for engine in known.values():
            engine.gone = True
            engine.team.refresh(now)
            engine.close()

    @property
    def present(self) -> set[Key]:
        return {(e.upstream, e.address) for g in self.groups.values() for e in g.engines}

    @property
    def settled(self) -> bool:
        """Whether every engine that is checked has been checked once."""
        return all(
            engine.checked or engine.line.down
            for group in self.groups.values()
            if group.conf.health_check is not None
            for engine in group.engines
        )

    def _engine(self, conf: Upstream, line: EngineLine, former: Engine | None) -> Engine:
        if former is None:
            slot = self.ledger.open(conf.name, line.address)
            return Engine(conf.name, line, self.ledger, slot)
        if former.line.role != line.role:
            former.role = line.role
        former.line = line
        if conf.health_check is None:
            former.healthy, former.checked, former.why = True, False, ""
        former.marks.max_fails = line.max_fails
        former.marks.fail_timeout_s = line.fail_timeout_s
        return former

    def _open_pools(self, engine: Engine, conf: Upstream, schemes: set[str]) -> None:
        wanted = conf.keepalive, conf.keepalive_timeout_s, conf.keepalive_requests
        for at, scheme in enumerate(("http", "https")):
            pool = engine.pools[at]
            if scheme not in schemes:
                continue
            if pool is None or (pool.max_idle, pool.idle_s, pool.max_requests) != wanted:
                engine.replace_pool(at, engine.open_pool(conf, self._tls if at else None, ""))

    def close(self) -> None:
        for group in self.groups.values():
            for engine in group.engines:
                engine.close()


def _cache(conf: Upstream, line: EngineLine) -> tuple[object, ...]:
    """What an engine's slot in the index stands for. One server in several upstreams has one cache,
    and is followed once where all of them say the same of it.
    """
    return line.address, line.events, line.replay, conf.kv.events, conf.kv.block_size
