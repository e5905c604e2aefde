"""Metrics of the processes of one gateway, declared once, and the collector that fills them.

Workers are told by the number of their slot in shared memory, which the next worker in it takes
over: there are as many series as there have been workers at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.metrics import Declared, add, buckets, families
from gateway.process.delay import BOUNDS_S

if TYPE_CHECKING:
    from gateway.process.delay import Delays
    from gateway.status import Life

STATES = ("starting", "serving", "draining")

WORKERS = Declared("kvgate_workers", "gauge", ("state",), "worker processes, by what they do")
STARTED = Declared(
    "kvgate_workers_started_total", "counter", (),
    "worker processes started since the master was, the first ones among them",
)  # fmt: skip
DIED = Declared(
    "kvgate_workers_died_total", "counter", (),
    "worker processes that ended unasked, or were killed as they had stopped; each was replaced",
)  # fmt: skip
RELOADS = Declared(
    "kvgate_reloads_total", "counter", ("result",),
    "reloads of the configuration file: taken, or refused, which changed nothing",
)  # fmt: skip
RELOAD_OK = Declared(
    "kvgate_last_reload_ok", "gauge", (), "0 where the latest reload was refused, else 1"
)
GENERATION = Declared(
    "kvgate_config_generation", "gauge", (),
    "number of the configuration in use; reloads and run-time changes raise it",
)  # fmt: skip
LOADED = Declared(
    "kvgate_config_loaded_timestamp_seconds", "gauge", (),
    "when it was taken, seconds since the epoch", "seconds",
)  # fmt: skip
DELAY = Declared(
    "kvgate_event_loop_delay_seconds", "histogram", ("worker",),
    "how late a worker's event loop ran a timer, 20 values a second; long ones are felt by every"
    " request and stream there", "seconds",
)  # fmt: skip

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Declared))


class ProcessCollector(Collector):
    def __init__(self, life: Life, delays: Delays) -> None:
        self._life = life
        self._delays = delays

    def collect(self) -> Iterator[Metric]:
        made = families(ALL)
        state = self._life.state
        found = Counter(each.state for each in state.processes if each.kind == "worker")
        for name in STATES:
            add(made, WORKERS, (name,), found[name])
        add(made, STARTED, (), state.started)
        add(made, DIED, (), state.died)
        add(made, RELOADS, ("taken",), state.reloads)
        add(made, RELOADS, ("refused",), state.refused)
        add(made, RELOAD_OK, (), int(not state.reload_error))
        add(made, GENERATION, (), state.generation)
        add(made, LOADED, (), state.loaded)
        for worker, (counts, total_s) in self._delays.read().items():
            rows = buckets(BOUNDS_S, counts)
            made[DELAY.name].add_metric((str(worker),), rows, total_s)  # type: ignore[attr-defined]
        yield from made.values()
