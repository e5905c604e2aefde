"""Counts of disaggregated serving, of the whole gateway: a front of `native.Counters`.

Invariant: what is counted is named by closed sets, so no request can make a new series.
"""

from __future__ import annotations

from bisect import bisect_left

from gateway.disagg.transfer import ENDS
from gateway.kv.routed import WHYS
from gateway.planner.roles import ROLES
from native._core import Counters

# Upper bounds of the histograms, in seconds; the last bucket has none.
PREFILL_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SECOND_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1)
FETCH_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
HISTOGRAMS = {"prefill": PREFILL_S, "second": SECOND_S, "fetch": FETCH_S}
_SUMS = ("tokens", "redone", "again", "apart")


class DisaggCounts:
    def __init__(self, workers: int = 1, worker: int | None = 0) -> None:
        """`worker` None: bound later, by `bind`."""
        names = [f"why/{why}" for why in WHYS] + [f"end/{end}" for end in ENDS] + list(_SUMS)
        names += [f"role/{role}" for role in ROLES]
        for name, bounds in HISTOGRAMS.items():
            names += [f"{name}/{at}" for at in range(len(bounds) + 1)] + [f"{name}_us"]
        self._counters = Counters(workers, names, ["pending"])
        self._at = {name: at for at, name in enumerate((*names, "pending"))}
        self._pending = 0
        self.bind = self._counters.bind
        self.retire = self._counters.retire
        if worker is not None:
            self.bind(worker)

    # ---- counting ----

    def add(self, name: str, n: int = 1) -> None:
        self._counters.add(self._at[name], n)

    def time(self, name: str, seconds: float) -> None:
        self.add(f"{name}/{bisect_left(HISTOGRAMS[name], seconds)}")
        self.add(f"{name}_us", max(int(seconds * 1e6), 0))

    def pend(self, more: int) -> None:
        """One more prefill of this worker is on its way, or one less waits to be fetched."""
        self._pending += more
        self._counters.set(self._at["pending"], self._pending)

    @property
    def waits(self) -> bool:
        """Whether something of this worker is at a prefill engine, with or without a client."""
        return self._pending > 0

    # ---- reading ----

    def count(self, name: str) -> int:
        return self._counters.value(self._at[name])

    def histogram(self, name: str) -> tuple[list[int], float]:
        """(counts per bucket, sum in seconds)."""
        buckets = range(len(HISTOGRAMS[name]) + 1)
        return [self.count(f"{name}/{at}") for at in buckets], self.count(f"{name}_us") / 1e6
