"""Every metric of the daemon, declared once over the core's figures, and the collector for them.

Invariant: the number of series is fixed by this table; nothing per block or job goes through here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from native import VERSION

Figures = Mapping[str, int | str]
Durations = Mapping[str, tuple[list[int], int]]


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric: `sources` are (label values, figure of the core). A figure that is not there (a
    tier that is off) has no series. `scale` turns the figure into the metric's unit.
    """

    name: str
    kind: str  # counter | gauge
    labels: tuple[str, ...]
    help: str
    sources: tuple[tuple[tuple[str, ...], str], ...]
    scale: float = 1.0


def _one(name: str, kind: str, help: str, figure: str, scale: float = 1.0) -> Declared:
    return Declared(name, kind, (), help, (((), figure),), scale)


def _tiers(name: str, kind: str, help: str, **figures: str) -> Declared:
    sources = tuple(((tier,), figure) for tier, figure in figures.items())
    return Declared(name, kind, ("tier",), help, sources)


ALL: tuple[Declared, ...] = (
    _one("kvbm_sessions", "gauge", "engines connected", "sessions"),
    _one("kvbm_jobs_active", "gauge", "stores and loads under way", "jobs_under_way"),
    _one("kvbm_connections_total", "counter", "connections accepted", "connections_accepted"),
    Declared(
        "kvbm_connections_refused_total",
        "counter",
        ("reason",),
        "connections turned away",
        (
            (("user",), "connections_refused_uid"),
            (("full",), "connections_refused_full"),
            (("frame",), "bad_frames"),
        ),
    ),
    _one("kvbm_jobs_total", "counter", "stores, loads and fetches of many blocks", "jobs"),
    _one("kvbm_jobs_late_total", "counter", "jobs given up at their deadline", "timeouts"),
    _one("kvbm_jobs_cancelled_total", "counter", "jobs that the engine gave up", "cancelled"),
    _one("kvbm_lookups_total", "counter", "lookups of engines", "found_lookups"),
    _one("kvbm_lookups_asked_total", "counter", "of these, those that asked the daemon",
         "lookups"),
    _tiers("kvbm_hits_total", "counter", "blocks looked up and found, by the nearest tier",
           host="found_host", disk="found_disk", remote="found_remote"),
    _one("kvbm_misses_total", "counter", "blocks looked up and not found", "found_missed"),
    _one("kvbm_gated_total", "counter",
         "blocks that engines found and did not load: computing them is quicker", "found_gated"),
    Declared(
        "kvbm_ahead_total",
        "counter",
        ("what",),
        "blocks to be brought nearer before they are asked for",
        ((("brought",), "ahead_brought"), (("dropped",), "ahead_dropped")),
    ),
    _one(
        "kvbm_probe_differs_total",
        "counter",
        "engines whose hashes have another seed than those of an equal engine",
        "probe_differs",
    ),
    _one("kvbm_heartbeats_late_total", "counter", "heartbeats later than 200 ms, one at the start "
         "included: the machine is too busy; after 400 ms engines take all for a miss",
         "beats_late"),
    _one("kvbm_changes_total", "counter", "blocks that came or went", "changes"),
    _tiers("kvbm_blocks", "gauge", "blocks held", host="host_blocks", disk="disk_blocks",
           remote="remote_blocks"),
    _tiers("kvbm_bytes", "gauge", "bytes in use", host="host_used_bytes", disk="disk_used_bytes"),
    _tiers(
        "kvbm_capacity_bytes",
        "gauge",
        "bytes that may be in use",
        host="host_capacity_bytes",
        disk="disk_capacity_bytes",
    ),
    _one("kvbm_payload_bytes", "gauge", "bytes of the blocks on disk", "disk_payload_bytes"),
    _one("kvbm_other_bytes", "gauge", "bytes of the disk's directory that are no segments: kvbm's "
         "journal, snapshot and first page, and files of others", "disk_other_bytes"),
    _one("kvbm_index_bytes", "gauge", "memory of the disk's index", "disk_index_bytes"),
    _one("kvbm_lookup_table_bytes", "gauge", "memory of the shared table", "table_bytes"),
    _one("kvbm_lookup_table_left_out", "gauge", "blocks it had no room for", "table_left_out"),
    _tiers(
        "kvbm_stored_total",
        "counter",
        "blocks written",
        host="host_committed",
        disk="disk_stored",
        remote="remote_sent",
    ),
    _tiers("kvbm_stored_bytes_total", "counter", "bytes of blocks written",
           disk="disk_stored_bytes", remote="remote_sent_bytes"),
    _tiers("kvbm_loaded_total", "counter", "blocks handed up", host="host_hits",
           disk="disk_loaded", remote="remote_fetched"),
    _tiers("kvbm_loaded_bytes_total", "counter", "bytes of blocks read",
           disk="disk_loaded_bytes", remote="remote_fetched_bytes"),
    _tiers("kvbm_evicted_total", "counter", "blocks forgotten for want of room",
           host="host_evicted", disk="disk_evicted"),
    _one("kvbm_dropped_total", "counter", "blocks forgotten on demand", "disk_dropped"),
    _tiers("kvbm_deduplicated_total", "counter", "stores of blocks that were there",
           disk="disk_deduped", remote="remote_deduped"),
    _tiers("kvbm_corrupt_total", "counter", "blocks that were not what was written",
           disk="disk_corrupt", remote="remote_corrupt"),
    Declared(
        "kvbm_failed_total",
        "counter",
        ("tier", "what"),
        "blocks that could not be stored or loaded, corrupt ones included",
        (
            (("disk", "store"), "disk_store_failed"),
            (("disk", "load"), "disk_load_failed"),
            (("remote", "store"), "remote_send_failed"),
            (("remote", "load"), "remote_failed"),
        ),
    ),
    Declared(
        "kvbm_refused_total",
        "counter",
        ("reason",),
        "blocks not taken in, by reason",
        tuple(
            ((reason,), f"disk_refused_{reason}")
            for reason in ("policy", "budget", "busy", "degraded", "too_large")
        ),
    ),
    _one("kvbm_io_errors_total", "counter", "errors of the disk", "disk_io_errors"),
    _one("kvbm_reinserted_bytes_total", "counter",
         "bytes written again because their segment was emptied", "disk_reinserted_bytes"),
    _one("kvbm_verified_total", "counter", "blocks read by verifying", "disk_scrubbed"),
    _one("kvbm_queue_bytes", "gauge", "bytes of stores that wait", "disk_queued_store_bytes"),
    _one("kvbm_queue_loads", "gauge", "loads that wait", "disk_queued_loads"),
    _one("kvbm_pinned_segments", "gauge", "segments that must stay", "disk_pinned_segments"),
    _one("kvbm_host_held", "gauge", "slots of the arena that engines hold", "host_held"),
    _tiers("kvbm_tier_healthy", "gauge", "1: it serves; 0: it is in trouble, or left alone",
           disk="disk_good", remote="remote_good"),
    _one("kvbm_breaker_opened_total", "counter", "times the remote store was left alone",
         "remote_breaker_opened"),
    _one("kvbm_remote_bundles", "gauge", "objects of several blocks that are known",
         "remote_bundles"),
    _one("kvbm_remote_bundles_sent_total", "counter", "such objects sent", "remote_bundles_sent"),
    _one("kvbm_remote_bundled_total", "counter", "blocks sent in such objects", "remote_bundled"),
    _one("kvbm_remote_bundles_bad_total", "counter",
         "such objects that were not what their name says", "remote_bundles_bad"),
    _one("kvbm_remote_fetches_total", "counter",
         "requests for blocks; one may bring several of a bundle", "remote_fetches"),
    _one("kvbm_remote_absent_total", "counter", "fetches of objects that were gone",
         "remote_absent"),
    _one("kvbm_remote_unlisted_total", "counter",
         "blocks that were known and that listing the store did not name any more",
         "remote_unlisted"),
    _one("kvbm_remote_queue_sends", "gauge", "blocks that wait to be sent",
         "remote_queued_sends"),
    _one("kvbm_remote_sends_dropped_total", "counter", "blocks not sent: too many waited",
         "remote_sends_dropped"),
    _one("kvbm_remote_latency_seconds", "gauge",
         "until the first block of a fetch, as the last ones went; 0.03 until then",
         "remote_latency_us", 1e-6),
    _one("kvbm_event_batches_total", "counter", "batches of events published", "event_batches"),
    _one("kvbm_recovered_blocks", "gauge", "blocks found at the last start", "disk_recovered"),
    _one("kvbm_recovery_seconds", "gauge", "what finding them took", "disk_recovery_us", 1e-6),
)  # fmt: skip


DURATION = Declared(
    "kvbm_job_duration_seconds", "histogram", ("kind",),
    "from a job's frame to its end, many blocks each",
    ((("store",), ""), (("load",), ""), (("fetch",), "")),
)  # fmt: skip
BUILD = Declared("kvbm_build_info", "gauge", ("version",), "1, with the daemon's version", ())
EVERY = (BUILD, *ALL, DURATION)


class _Collector(Collector):
    def __init__(self, figures: Callable[[], Figures], durations: Callable[[], Durations]) -> None:
        self._figures = figures
        self._durations = durations

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        build = GaugeMetricFamily(BUILD.name, BUILD.help, labels=BUILD.labels)
        build.add_metric((VERSION,), 1)
        yield build
        for declared in ALL:
            yield from _family(declared, figures)
        yield _histogram(self._durations())


def _family(declared: Declared, figures: Figures) -> Iterator[Metric]:
    made = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
    family = made(declared.name, declared.help, labels=declared.labels)
    for labels, figure in declared.sources:
        value = figures.get(figure)
        if isinstance(value, int):
            family.add_metric(labels, value * declared.scale)
    if family.samples:
        yield family


def _histogram(durations: Durations) -> Metric:
    """Buckets end at powers of four microseconds: the core's, two by two."""
    family = HistogramMetricFamily(DURATION.name, DURATION.help, labels=DURATION.labels)
    for kind, (counts, sum_us) in durations.items():
        buckets, total = [], 0
        for power, count in enumerate(counts):
            total += count
            if power % 2 == 0 and 6 <= power < len(counts) - 1:
                buckets.append((f"{2**power / 1e6:g}", total))
        buckets.append(("+Inf", total))
        family.add_metric((kind,), buckets, sum_us / 1e6)
    return family


def registry(
    figures: Callable[[], Figures], durations: Callable[[], Durations]
) -> CollectorRegistry:
    """A registry that asks the core whenever it is scraped."""
    made = CollectorRegistry(auto_describe=False)
    made.register(_Collector(figures, durations))
    return made
