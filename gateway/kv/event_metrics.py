"""Metrics of KV events and of what is known by them, declared once, and the collector that fills
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.kv.event_counts import BLOCKS, BYTES, EVICTED
from gateway.kv.trust import STATES
from gateway.metrics import ENGINE, Declared, add, families

if TYPE_CHECKING:
    from gateway.fleet.engines import EngineTable
    from gateway.kv.caches import Caches
    from gateway.kv.event_counts import EventCounts

FAULTS = (
    "gaps", "lost", "restarts", "replays", "replays_failed", "duplicates", "overflows",
    "malformed",
)  # fmt: skip
TRUST = Declared(
    "kvgate_engine_trust", "gauge", (*ENGINE, "state"),
    "1 for how far what is known of the engine's KV cache is believed, by the most doubtful worker:"
    " exact, healing, approximate or blind; only of kv_aware upstreams",
)  # fmt: skip
STORE_TRUST = Declared(
    "kvgate_kvbm_trust", "gauge", (*ENGINE, "state"),
    "1 for how far what the engine's kvbm daemon holds is known to the worker that answers; only of"
    " engines whose `server` line names one",
)  # fmt: skip
BATCHES = Declared(
    "kvgate_kv_event_batches_total", "counter", (),
    "batches of KV events taken into the index, by every worker for itself",
)  # fmt: skip
TROUBLE = Declared(
    "kvgate_kv_event_faults_total", "counter", ("kind",),
    "what happened to streams of KV events: gaps in their numbers, batches lost for good, restarts"
    " of engines, replays asked for and those that failed, batches that came twice, waiting batches"
    " that were too many, batches that could not be read",
)  # fmt: skip
INDEX_BYTES = Declared(
    "kvgate_kv_index_bytes", "gauge", (), "memory of the indexes of all workers", "bytes"
)
INDEX_BLOCKS = Declared(
    "kvgate_kv_index_blocks", "gauge", (), "(block, engine) pairs in the indexes of all workers"
)
INDEX_EVICTED = Declared(
    "kvgate_kv_index_evicted_total", "counter", (),
    "(block, engine) pairs that an index had no room for (kv_index_size)",
)  # fmt: skip

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Declared))


class EventCollector(Collector):
    def __init__(self, counts: EventCounts, caches: Caches, table: EngineTable) -> None:
        self._counts = counts
        self._caches = caches
        self._table = table

    def collect(self) -> Iterator[Metric]:
        made = families(ALL)
        for group in self._table.groups.values():
            for engine in group.engines if group.conf.kv.aware else ():
                standings = {TRUST: self._caches.worst(engine)}
                if (store := self._caches.store(engine)) is not None:
                    standings[STORE_TRUST] = store
                for metric, standing in standings.items():
                    for state in STATES:
                        labels = (group.name, engine.address, state)
                        add(made, metric, labels, int(state == standing.state))
        count = self._counts.count
        add(made, BATCHES, (), count("batches"))
        for kind in FAULTS:
            add(made, TROUBLE, (kind,), count(kind))
        add(made, INDEX_BYTES, (), count(BYTES))
        add(made, INDEX_BLOCKS, (), count(BLOCKS))
        add(made, INDEX_EVICTED, (), count(EVICTED))
        yield from made.values()
