"""Counts of routing by prompts, of the whole gateway: a front of `native.Counters`.

Invariant: what is counted is named by closed sets, so no request can make a new series.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from gateway.kv.routed import REASONS, SOURCES, TIERS
from native._core import Counters

if TYPE_CHECKING:
    from gateway.kv.routed import Routed

# Upper bounds of the histograms, in seconds; the last bucket has none.
TOKENIZE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)
DECIDE_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01)
HISTOGRAMS = {"tokenize": TOKENIZE_S, "decide": DECIDE_S}
_SUMS = ("prompt_tokens", "compared", "compared_predicted", "compared_cached", "equal")


class KvCounts:
    def __init__(self, workers: int = 1, worker: int | None = 0) -> None:
        """`worker` None: bound later, by `bind`."""
        names = [f"source/{source}" for source in SOURCES]
        names += [f"reason/{reason}" for reason in REASONS]
        names += [f"matched/{tier}" for tier in TIERS]
        names += _SUMS
        for name, bounds in HISTOGRAMS.items():
            names += [f"{name}/{at}" for at in range(len(bounds) + 1)] + [f"{name}_us"]
        self._counters = Counters(workers, names, [])
        self._at = {name: at for at, name in enumerate(names)}
        self.bind = self._counters.bind
        self.retire = self._counters.retire
        if worker is not None:
            self.bind(worker)

    # ---- counting ----

    def request(self, kv: Routed, cached: int) -> None:
        """Counts a request that has ended; `cached`: prompt tokens that its engine found, as that
        said itself, -1 = it did not say.
        """
        add, at = self._counters.add, self._at
        if kv.source:
            add(at[f"source/{kv.source}"])
        if kv.reason:
            add(at[f"reason/{kv.reason}"])
        self._time("tokenize", kv.tokenize_s)
        choice, prompt = kv.reader, kv.prompt
        if choice is None or prompt is None:
            return
        self._time("decide", kv.decide_s)
        add(at["prompt_tokens"], prompt.tokens)
        row = choice.row
        for tier in TIERS:
            tokens = getattr(row, tier)
            if tokens:
                add(at[f"matched/{tier}"], tokens)
        if cached >= 0 and kv.comparable:
            add(at["compared"])
            add(at["compared_predicted"], kv.matched)
            add(at["compared_cached"], cached)
            if kv.matched == cached:
                add(at["equal"])

    def _time(self, name: str, seconds: float) -> None:
        add, at = self._counters.add, self._at
        add(at[f"{name}/{bisect_left(HISTOGRAMS[name], seconds)}"])
        add(at[f"{name}_us"], int(seconds * 1e6))

    # ---- reading ----

    def count(self, name: str) -> int:
        return self._counters.value(self._at[name])

    def histogram(self, name: str) -> tuple[list[int], float]:
        """(counts per bucket, sum in seconds)."""
        buckets = range(len(HISTOGRAMS[name]) + 1)
        return [self.count(f"{name}/{at}") for at in buckets], self.count(f"{name}_us") / 1e6
