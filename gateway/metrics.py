"""Metrics of engines and of the gateway as a whole, declared once, and the collector that fills
them from native counts. Those of routes are in gateway/route_metrics.py.

Invariant: label values come from closed sets (configuration, error codes, termination codes), so
the number of series is bounded by the configuration; nothing per request goes through here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.status import shared_state

if TYPE_CHECKING:
    from gateway.fleet.engines import EngineTable
    from gateway.stats import Statistics


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric. `kind`: counter, gauge or histogram; `unit`: "" where it is a plain number."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    unit: str = ""


ENGINE = ("upstream", "engine")

REFUSED = Declared(
    "kvgate_refused_total", "counter", ("code",), "answers of the gateway's own, by error code"
)
RETRIES = Declared(
    "kvgate_retries_total",
    "counter",
    ("reason",),
    "requests passed to another engine, by what failed",
)
REPLAYS = Declared(
    "kvgate_replays_total",
    "counter",
    (),
    "requests sent again because an idle connection had been closed",
)
STRIPPED = Declared(
    "kvgate_stripped_total",
    "counter",
    (),
    "fields and headers removed that a stranger must not set",
)
ACTIVE = Declared("kvgate_requests_active", "gauge", (), "requests being served")
IN_FLIGHT = Declared("kvgate_engine_in_flight", "gauge", ENGINE, "requests at the engine")
UP = Declared(
    "kvgate_engine_state", "gauge", (*ENGINE, "state"),
    "1 for the engine's present state: up, benched, unhealthy, draining or down",
)  # fmt: skip
FAILS = Declared("kvgate_engine_marks", "gauge", ENGINE, "passive failure marks of the engine")
POOL = Declared(
    "kvgate_pool_connections",
    "gauge",
    (*ENGINE, "state"),
    "connections to the engine, idle or active",
)
OPENED = Declared("kvgate_pool_opened_total", "counter", ENGINE, "connections opened to the engine")
REUSED = Declared(
    "kvgate_pool_reused_total", "counter", ENGINE, "requests sent on an idle connection"
)
CONNECT_ERRORS = Declared(
    "kvgate_pool_connect_errors_total", "counter", ENGINE, "connections that could not be opened"
)
LOG_DROPPED = Declared(
    "kvgate_access_log_dropped_total",
    "counter",
    (),
    "access-log lines that could not be written in time",
)
RECORD_DROPPED = Declared(
    "kvgate_record_dropped_total",
    "counter",
    (),
    "requests that could not be recorded in time",
)
RESPONSES = Declared(
    "kvgate_responses_known", "gauge", (), "stored responses whose engine is known"
)
DASHBOARDS = Declared(
    "kvgate_dashboards_open", "gauge", (), "browsers that watch /kvgate/, of all workers"
)
INFO = Declared("kvgate_info", "gauge", ("version",), "always 1")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Declared))
STATES = ("up", "benched", "unhealthy", "draining", "down")
_FAMILIES = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class KvgateCollector(Collector):
    """Fills every declared metric at the time of a scrape. `say` puts this worker's own numbers
    into the shared ones first.
    """

    def __init__(
        self,
        stats: Statistics,
        table: EngineTable,
        say: Callable[[], None],
    ) -> None:
        self._stats = stats
        self._table = table
        self._say = say

    def collect(self) -> Iterator[Metric]:
        self._say()
        made = families(ALL)
        self._engines(made)
        self._plain(made)
        yield from made.values()

    def _engines(self, made: dict[str, Metric]) -> None:
        ledger = self._table.ledger
        for group in self._table.groups.values():
            for engine in group.engines:
                labels = (group.name, engine.address)
                gauges, counts = ledger.core.said(engine.slot)
                idle, active, fails, benched = gauges
                add(made, IN_FLIGHT, labels, ledger.in_flight(engine.slot))
                add(made, FAILS, labels, fails)
                state = shared_state(engine, benched)
                for each in STATES:
                    add(made, UP, (*labels, each), int(each == state))
                add(made, POOL, (*labels, "idle"), idle)
                add(made, POOL, (*labels, "active"), active)
                for metric, count in zip((OPENED, REUSED, CONNECT_ERRORS), counts, strict=True):
                    add(made, metric, labels, count)

    def _plain(self, made: dict[str, Metric]) -> None:
        for code, count in self._stats.counts("refused").items():
            add(made, REFUSED, (code,), count)
        for reason, count in self._stats.counts("retry").items():
            add(made, RETRIES, (reason,), count)
        add(made, REPLAYS, (), self._stats.count("unsent_reuse"))
        add(made, STRIPPED, (), self._stats.count("stripped"))
        add(made, ACTIVE, (), self._stats.count("active"))
        add(made, LOG_DROPPED, (), self._stats.count("log_dropped"))
        add(made, RECORD_DROPPED, (), self._stats.count("record_dropped"))
        add(made, RESPONSES, (), self._stats.count("responses"))
        add(made, DASHBOARDS, (), self._stats.count("dashboards"))
        add(made, INFO, (__version__,), 1)


def families(metrics: Iterable[Declared]) -> dict[str, Metric]:
    """An empty family for each."""
    return {m.name: _FAMILIES[m.kind](m.name, m.help, labels=m.labels) for m in metrics}


def add(made: dict[str, Metric], metric: Declared, labels: tuple[str, ...], value: float) -> None:
    made[metric.name].add_metric(labels, value)  # type: ignore[attr-defined]


def buckets(
    bounds: tuple[float, ...], counts: list[int], split_s: float = 0.0, within: int = 0
) -> list[tuple[str, float]]:
    """Prometheus' cumulative buckets; the last one is +Inf. `split_s`: one more bound, 0 = none;
    `within`: what of its bucket lies up to it.
    """
    total, low = 0, 0.0
    out: list[tuple[str, float]] = []
    for bound, count in zip((*bounds, inf), counts, strict=True):
        if low < split_s < bound:
            out.append((repr(split_s), total + min(within, count)))
        total, low = total + count, bound
        out.append(("+Inf" if bound == inf else repr(float(bound)), total))
    return out


def registry(*collectors: Collector) -> CollectorRegistry:
    """A registry of its own: nothing that a library registers globally shows up."""
    own = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        own.register(collector)
    return own
