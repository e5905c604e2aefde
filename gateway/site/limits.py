"""`limit_req` and `limit_conn`: what a location's requests are held to, over all workers.

Invariants: a request that is refused by one rate is counted by none; one that is refused by a
`limit_conn` holds no place of another. Places that were taken are in `ctx.held` and given back
once, by the record. One native call per request and way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from gateway import errors
from gateway.conf.model import Config, Limits, LimitZone, Template
from gateway.log_lines import LEVELS
from gateway.logs import log
from gateway.site.addresses import REMEMBERED_MAX, packed
from gateway.site.variables import Maps, compile_key
from native._core import Conns, Grip, Limiter, Rates

if TYPE_CHECKING:
    from gateway.context import Context

_BELOW = {"error": "warn", "warn": "notice", "notice": "info", "info": "debug"}
Key = Callable[["Context"], bytes]


class Zones:
    """The zones' memory, by name. Made by whoever starts workers, before they start; each worker
    binds its slot. A zone keeps its size and counts over reloads.
    """

    def __init__(self, workers: int = 1, worker: int | None = 0) -> None:
        """`worker` None: bound later, by `bind`."""
        self.workers = workers
        self.worker = worker
        self.rates: dict[str, Rates] = {}
        self.conns: dict[str, Conns] = {}

    def open(self, config: Config) -> None:
        """Makes the memory of zones that have none yet."""
        for name, zone in config.req_zones.items():
            if name not in self.rates:
                self.rates[name] = Rates(zone.entries)
        for name, zone in config.conn_zones.items():
            if name not in self.conns:
                self.conns[name] = made = Conns(self.workers, zone.entries)
                if self.worker is not None:
                    made.bind(self.worker)

    def bind(self, worker: int) -> None:
        """Makes this process the writer of a slot. Raises ValueError where it is taken."""
        self.worker = worker
        for table in self.conns.values():
            table.bind(worker)

    def retire(self, worker: int) -> None:
        """Takes back what an ended process had in flight."""
        for table in self.conns.values():
            table.retire(worker)


class Guard:
    """The limits of one location."""

    __slots__ = ("_by_peer", "_known", "_limits", "_names", "_native", "_rates", "_read")

    def __init__(self, limits: Limits, config: Config, zones: Zones, maps: Maps) -> None:
        self._limits = limits
        places: dict[Template, int] = {}  # zones of one key share a place
        rates = []
        for req in limits.reqs:
            zone = config.req_zones[req.zone]
            place = places.setdefault(zone.key, len(places))
            interval_ns = _interval_ns(zone)
            rates.append((zones.rates[req.zone], interval_ns, req.burst, req.delay, place))
        conns = []
        for conn in limits.conns:
            place = places.setdefault(config.conn_zones[conn.zone].key, len(places))
            conns.append((zones.conns[conn.zone], conn.limit, place))
        self._native = Limiter(rates, conns)
        self._read: tuple[Key, ...] = tuple(compile_key(key, maps) for key in places)
        self._by_peer = all(read is packed for read in self._read)
        self._known: dict[str, Grip] = {}  # peer -> what it holds
        self._rates = tuple(config.req_zones[req.zone] for req in limits.reqs)
        self._names = (*(r.zone for r in limits.reqs), *(c.zone for c in limits.conns))

    def enter(self, ctx: Context) -> errors.GatewayError | None:
        """Counts a request and takes its places, or says why not; where `ctx.delay_s` is set, it
        has to wait so long and then calls `wait_over`.
        """
        held = self._known.get(ctx.client.peer) or self._holds(ctx)
        stopped = held.enter(monotonic())
        if stopped is None:
            ctx.held = held
            return None
        limit, wait_s = stopped
        if wait_s < 0.0:
            return self._refused(ctx, limit)
        ctx.delay_s = wait_s
        level = _BELOW[self._limits.req_log_level]
        self._say(level, f"delaying request by {wait_s:.3f} s", limit, ctx)
        return None

    def wait_over(self, ctx: Context) -> errors.GatewayError | None:
        """Takes the places of a request that has waited, or says why not."""
        held = self._holds(ctx)
        stopped = held.hold()
        if stopped is not None:
            return self._refused(ctx, stopped[0])
        ctx.held = held
        return None

    def _holds(self, ctx: Context) -> Grip:
        """What a request holds once it is in; kept where all keys are those of its connection."""
        held = self._native.of(tuple([read(ctx) for read in self._read]))
        if self._by_peer:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[ctx.client.peer] = held
        return held

    def _refused(self, ctx: Context, limit: int) -> errors.GatewayError:
        limits = self._limits
        name = self._names[limit]
        if limit < len(self._rates):
            self._say(limits.req_log_level, "limiting requests", limit, ctx)
            interval_s = _interval_ns(self._rates[limit]) * 1e-9
            return errors.RateExceeded.of(name, limits.req_status, interval_s)
        self._say(limits.conn_log_level, "limiting connections", limit, ctx)
        return errors.TooManyInFlight.of(name, limits.conn_status)

    def _say(self, level: str, what: str, limit: int, ctx: Context) -> None:
        number = LEVELS.get(level, logging.DEBUG)
        if log.isEnabledFor(number):
            log.log(number, "request %s: %s by zone `%s`, client: %s",
                    ctx.request_id, what, self._names[limit], ctx.client.peer)  # fmt: skip


def _interval_ns(zone: LimitZone) -> int:
    return max(1, round(1e9 / zone.rate))


def leave(ctx: Context) -> None:
    """Gives back the places that a request holds."""
    held, ctx.held = ctx.held, None
    if held is not None:
        held.leave()


def guard(limits: Limits, config: Config | None, zones: Zones, maps: Maps) -> Guard | None:
    """None where a location has no limits."""
    if config is None or not (limits.reqs or limits.conns):
        return None
    return Guard(limits, config, zones, maps)
