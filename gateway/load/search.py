"""The highest rate at which enough requests keep their SLOs: doubled, then halved between.

Invariant: pure; it says which rate to try next and takes what came of it. A bound is resolved where
the interval of its attainment lies on one side of the target; the answer only where both are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Literal

from gateway.load.goodput import Goodput

NEAR = 0.05  # between the bounds, of the lower one
PROBES_MAX = 16
SLOWEST = 64  # times below the first rate, nothing is looked for


@dataclass(frozen=True, slots=True)
class Probe:
    """`rate`: as offered; `kept`: at least `target` of the requests were good."""

    rate: float
    found: Goodput
    kept: bool
    resolved: bool


@dataclass(slots=True)
class Search:
    """Between `low` (kept) and `high` (not kept), once there are both."""

    target: float
    first: float  # requests a second
    near: float = NEAR
    probes: list[Probe] = field(default_factory=list)

    @property
    def low(self) -> Probe | None:
        kept = [probe for probe in self.probes if probe.kept]
        return max(kept, key=lambda probe: probe.rate, default=None)

    @property
    def high(self) -> Probe | None:
        """The slowest that was too fast, of those above what was kept."""
        above = self.low.rate if self.low else 0.0
        lost = [probe for probe in self.probes if not probe.kept and probe.rate > above]
        return min(lost, key=lambda probe: probe.rate, default=None)

    def next(self) -> float | None:
        """The rate to try; None: it is found, or no more are tried."""
        if not self.probes:
            return self.first
        low, high = self.low, self.high
        if len(self.probes) >= PROBES_MAX:
            return None
        if low is None:
            slower = self.probes[-1].rate / 2
            return slower if slower * SLOWEST >= self.first else None
        if high is None:
            return low.rate * 2
        if high.rate <= low.rate * (1 + self.near):
            return None
        return sqrt(low.rate * high.rate)

    def take(self, rate: float, found: Goodput) -> None:
        resolved = found.low >= self.target or found.high < self.target
        self.probes.append(Probe(rate, found, found.attainment >= self.target, resolved))

    @property
    def verdict(self) -> Literal["resolved", "unresolved"]:
        """Resolved: bounds that are near each other, each on its side of the target for sure."""
        low, high = self.low, self.high
        if low is None or high is None or high.rate > low.rate * (1 + self.near) * 1.001:
            return "unresolved"
        return "resolved" if low.resolved and high.resolved else "unresolved"
