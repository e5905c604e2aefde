"""Figures of a stretch of time from two readings of counts that only grow. Pure.

Invariant: a figure that nothing was counted for is None, never 0; counts that went backwards (a
configuration without the series came in between) count as nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SHARES = (0.5, 0.95, 0.99)
HISTOGRAMS = ("ttft", "tpot")
Histogram = tuple[int, ...]  # counts per bucket, the last one without an upper bound
Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Totals:
    """What one upstream has counted, over all workers and routes."""

    completed: int = 0
    refused: int = 0  # answered with 4xx
    failed: int = 0  # by an engine or the gateway
    left: int = 0  # by their clients
    good: int = 0  # kept every SLO
    missed: dict[str, int] = field(default_factory=dict)  # did not, by cause
    metered: int = 0  # whose engine said its tokens; those of others are not counted
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    histograms: dict[str, Histogram] = field(default_factory=dict)


def grown(now: int, before: int) -> int:
    return max(now - before, 0)


def between(now: Histogram, before: Histogram) -> Histogram:
    """What came into each bucket since."""
    if len(before) != len(now):
        return now
    return tuple(grown(a, b) for a, b in zip(now, before, strict=True))


def quantile(bounds: Sequence[float], counts: Histogram, share: float) -> float | None:
    """As Prometheus' histogram_quantile: straight within a bucket, the last bound beyond it."""
    total = sum(counts)
    if not total:
        return None
    rank, passed = share * total, 0
    for at, count in enumerate(counts[: len(bounds)]):
        if count and passed + count >= rank:
            low = bounds[at - 1] if at else 0.0
            return low + (bounds[at] - low) * max(rank - passed, 0.0) / count
        passed += count
    return bounds[-1]


def within(bounds: Sequence[float], counts: Histogram, limit: float) -> float | None:
    """The share of values up to `limit`; exact where that is a bound, else straight between two."""
    total = sum(counts)
    if not total or limit <= 0:
        return None
    passed, low = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if limit < bound:
            passed += count * (limit - low) / (bound - low)
            break
        passed, low = passed + count, bound
    return passed / total


def figures(
    now: Totals,
    before: Totals,
    seconds: float,
    bounds: dict[str, tuple[float, ...]],
    slo_s: dict[str, float],
) -> Figures:
    """Rates per second, latencies in seconds, shares from 0 to 1. `slo_s`: by SLO, 0 = none.

    `goodput` and `attainment` are of requests that were counted one by one; misses by cause stand
    in `missed_CAUSE_per_s`.
    """
    out: Figures = {}
    told = now.metered > before.metered
    for name in ("completed", "refused", "failed", "left", "input_tokens", "output_tokens"):
        count = grown(getattr(now, name), getattr(before, name))
        known = seconds > 0 and (told or not name.endswith("tokens"))
        out[f"{name}_per_s"] = count / seconds if known else None
    asked = grown(now.input_tokens, before.input_tokens)
    found = grown(now.cached_tokens, before.cached_tokens)
    out["hit_rate"] = min(found / asked, 1.0) if asked else None
    for name in HISTOGRAMS:
        counts = between(now.histograms.get(name, ()), before.histograms.get(name, ()))
        for share in SHARES:
            out[f"{name}_p{share * 100:g}"] = quantile(bounds[name], counts, share)
        out[f"{name}_within"] = within(bounds[name], counts, slo_s.get(name, 0.0))
    good = grown(now.good, before.good)
    missed = {name: grown(n, before.missed.get(name, 0)) for name, n in now.missed.items()}
    counted = good + sum(missed.values())
    out["attainment"] = good / counted if counted else None
    out["goodput_per_s"] = good / seconds if seconds > 0 and any(slo_s.values()) else None
    for name, count in missed.items():
        out[f"missed_{name}_per_s"] = count / seconds if seconds > 0 else None
    return out
