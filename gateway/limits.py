"""`limit_req` and `limit_conn`: what a location's requests are held to, over all workers.

Invariants: a request that is refused by one rate is counted by none; every place taken in a
`limit_conn` zone is in `ctx.held` and given back once, by the record, or when another limit
refuses the request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING

from gateway import errors
from gateway.conf.model import Config, Limits, LimitZone
from gateway.logs import LEVELS, log
from gateway.variables import compile_text
from native._core import Conns, Rates

if TYPE_CHECKING:
    from gateway.context import Context

_UNBOUNDED = (1 << 63) - 1
_BELOW = {"error": "warn", "warn": "notice", "notice": "info", "info": "debug"}
Key = Callable[["Context"], str]


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


class _Rate:
    __slots__ = ("burst", "delay", "interval_ns", "key", "name", "table")

    def __init__(self, zone: LimitZone, table: Rates, burst: int, delay: int | None) -> None:
        self.name = zone.name
        self.key: Key = compile_text(zone.key)
        self.table = table
        self.interval_ns = max(1, round(1e9 / zone.rate))
        self.burst = burst
        self.delay = delay

    def wait_s(self, excess: float) -> float:
        """How long a request waits that is so far above the rate."""
        if self.delay is None or excess <= self.delay:
            return 0.0
        return (excess - self.delay) * self.interval_ns * 1e-9


class Guard:
    """The limits of one location."""

    __slots__ = ("_conns", "_limits", "_rates")

    def __init__(self, limits: Limits, config: Config, zones: Zones) -> None:
        self._limits = limits
        self._rates = tuple(
            _Rate(config.req_zones[r.zone], zones.rates[r.zone], r.burst, r.delay)
            for r in limits.reqs
        )
        self._conns: tuple[tuple[str, Key, Conns, int], ...] = tuple(
            (c.zone, compile_text(config.conn_zones[c.zone].key), zones.conns[c.zone], c.limit)
            for c in limits.conns
        )

    def rate(self, ctx: Context) -> errors.GatewayError | None:
        """Counts a request, or says why not; `ctx.delay_s` is how long it has to wait."""
        now = monotonic_ns()
        if len(self._rates) == 1:
            return self._one_rate(ctx, now)
        keyed: list[tuple[_Rate, bytes]] = []
        for rate in self._rates:
            text = rate.key(ctx)
            if text:
                keyed.append((rate, text.encode("latin-1", "replace")))
        last = len(keyed) - 1
        wait_s = 0.0
        for at, (rate, key) in enumerate(keyed):
            excess = rate.table.take(key, now, rate.interval_ns, rate.burst, at == last)
            if excess < 0.0:
                return self._too_fast(ctx, rate)
            wait_s = max(wait_s, rate.wait_s(excess))
        for rate, key in keyed[:-1]:
            rate.table.take(key, now, rate.interval_ns, _UNBOUNDED // rate.interval_ns, True)
        if wait_s:
            self._delay(ctx, keyed[-1][0], wait_s)
        return None

    def _one_rate(self, ctx: Context, now: int) -> errors.GatewayError | None:
        """As `rate`, without the bookkeeping of several."""
        rate = self._rates[0]
        text = rate.key(ctx)
        if not text:
            return None
        key = text.encode("latin-1", "replace")
        excess = rate.table.take(key, now, rate.interval_ns, rate.burst, True)
        if excess < 0.0:
            return self._too_fast(ctx, rate)
        if rate.delay is not None and excess > rate.delay:
            self._delay(ctx, rate, rate.wait_s(excess))
        return None

    def _too_fast(self, ctx: Context, rate: _Rate) -> errors.GatewayError:
        self._say(self._limits.req_log_level, "limiting requests", rate.name, ctx)
        return errors.RateExceeded.of(rate.name, self._limits.req_status, rate.interval_ns * 1e-9)

    def _delay(self, ctx: Context, rate: _Rate, wait_s: float) -> None:
        ctx.delay_s = wait_s
        level = _BELOW[self._limits.req_log_level]
        self._say(level, f"delaying request by {wait_s:.3f} s", rate.name, ctx)

    def conns(self, ctx: Context) -> errors.GatewayError | None:
        """Takes a request's places, or none of them and says why."""
        for name, read, table, limit in self._conns:
            text = read(ctx)
            if not text:
                continue
            key = text.encode("latin-1", "replace")
            if not table.acquire(key, limit):
                leave(ctx)
                self._say(self._limits.conn_log_level, "limiting connections", name, ctx)
                return errors.TooManyInFlight.of(name, self._limits.conn_status)
            ctx.held = (*ctx.held, (table, key))
        return None

    def _say(self, level: str, what: str, zone: str, ctx: Context) -> None:
        number = LEVELS.get(level, logging.DEBUG)
        if log.isEnabledFor(number):
            log.log(number, "request %s: %s by zone `%s`, client: %s",
                    ctx.request_id, what, zone, ctx.client.peer)  # fmt: skip


def leave(ctx: Context) -> None:
    """Gives back the places that a request holds."""
    held, ctx.held = ctx.held, ()
    for table, key in held:
        table.release(key)


def guard(limits: Limits, config: Config | None, zones: Zones) -> Guard | None:
    """None where a location has no limits."""
    if config is None or not (limits.reqs or limits.conns):
        return None
    return Guard(limits, config, zones)
