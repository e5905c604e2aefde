"""Reads everything that the page shows at one moment, from shared memory and the live tables.

Invariant: sums over all workers, so that two readings of different workers can be compared; what
only the worker that reads knows is in `status`, which says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.dashboard.figures import HISTOGRAMS, Totals
from gateway.dashboard.snapshot import Reading
from gateway.disagg import transfer
from gateway.kv.routed import TIERS, WHYS
from gateway.plan_report import Reports
from gateway.slo import CAUSES, ENDS, LEVELS, WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.fleet.engines import EngineTable
    from gateway.process.memory import Memory
    from gateway.status import Status
    from native._core import SeriesSnapshot

# How the page calls what became of a request.
_SHOWN = {
    "completed": "completed", "refused": "refused", "limited": "refused", "overloaded": "failed",
    "failed": "failed", "cancelled": "left",
}  # fmt: skip
_COMPARED = {"expected": "compared_predicted", "cached": "compared_cached"}


class Reader:
    def __init__(self, status: Status, table: EngineTable, memory: Memory) -> None:
        self._status = status
        self._table = table
        self._memory = memory
        self._reports = Reports()
        self.bounds = {name: memory.stats.bounds(name) for name in HISTOGRAMS}

    @property
    def ending(self) -> bool:
        """Whether this worker waits for its last requests."""
        return self._status.life.draining

    def read(self, now: float, wall: float) -> Reading:
        stats, kv, disagg = self._memory.stats, self._memory.kv, self._memory.disagg
        groups = self._table.groups
        series: dict[str, list[SeriesSnapshot]] = {name: [] for name in groups}
        slos: dict[str, list[dict[str, float]]] = {name: [] for name in groups}
        for names, handle in stats.series.items():
            if names[2] in series:
                series[names[2]].append(stats.snapshot(handle))
                slos[names[2]].append(stats.slos(handle))
        reports = {name: g.conf.plan_report for name, g in groups.items() if g.conf.plan_report}
        transfers = {end: disagg.count(f"end/{end}") for end in transfer.ENDS}
        return Reading(
            now,
            wall,
            self._status.document(now),
            {name: totals(of) for name, of in series.items()},
            {name: strictest(of) for name, of in slos.items()},
            {tier: kv.count(f"matched/{tier}") for tier in TIERS},
            kv.count("prompt_tokens"),
            {kind: kv.count(name) for kind, name in _COMPARED.items()},
            {why: disagg.count(f"why/{why}") for why in WHYS},
            transfers | {"pending": disagg.count("pending")},
            self._reports.read(reports, wall),
        )


def strictest(slos: Iterable[dict[str, float]]) -> dict[str, float]:
    """Of the routes of an upstream, by SLO: the shortest time that any of them sets, 0 = none. What
    is good is counted for each by its own; this is what latencies of all are drawn against. Pure.
    """
    found = dict.fromkeys(LEVELS, 0.0)
    for one in slos:
        for level, limit_s in one.items():
            if limit_s and not 0 < found[level] <= limit_s:
                found[level] = limit_s
    return found


def totals(series: Iterable[SeriesSnapshot]) -> Totals:
    """The sum over the routes of an upstream. Pure."""
    ends = {"completed": 0, "refused": 0, "failed": 0, "left": 0}
    words = dict.fromkeys(WORDS, 0)
    tokens = [0, 0, 0, 0]
    histograms: dict[str, tuple[int, ...]] = {}
    for one in series:
        for end, count in zip(ENDS, one.ends, strict=False):
            ends[_SHOWN[end]] += count
        for word, count in zip(WORDS, one.words, strict=False):
            words[word] += count
        counts = (one.input_tokens, one.cached_tokens, one.output_tokens, one.metered)
        tokens = [a + b for a, b in zip(tokens, counts, strict=True)]
        for name in HISTOGRAMS:
            rows = one.histograms[name][0]
            former = histograms.get(name, (0,) * len(rows))
            histograms[name] = tuple(a + b for a, b in zip(former, rows, strict=True))
    return Totals(
        **ends,
        good=words["good"],
        missed={cause: words[cause] for cause in CAUSES},
        input_tokens=tokens[0],
        cached_tokens=tokens[1],
        output_tokens=tokens[2],
        metered=tokens[3],
        histograms=histograms,
    )
