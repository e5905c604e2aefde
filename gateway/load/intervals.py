"""Means and percentiles with their intervals, by the bootstrap over stretches of the run.

Neighbouring requests waited in the same queues, and the gaps of one answer came from one engine:
they say less than as many that know nothing of each other. So whole stretches of consecutive
requests are drawn again (Künsch's block bootstrap, without overlap), not single values. Pure.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import floor, log, sqrt
from operator import mul

STRETCHES = 32
LEAST_STRETCHES = 8  # below which an interval says nothing
RESAMPLES = 400
LEVELS = (0.025, 0.975)
QUANTILES = (0.5, 0.9, 0.95, 0.99)
# Beyond so many values, those closer than 1 % are taken for one in resamples (not in the estimate).
EXACT_MAX = 4096
NEAR = log(1.01)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % interval; the interval is None of too few requests."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """`count` of values; `quantiles` by their share."""

    count: int
    mean: Estimate
    quantiles: dict[float, Estimate]
    most: float


def quantile(ordered: Sequence[float], share: float) -> float:
    """Between two values linearly, as numpy does by default."""
    at = (len(ordered) - 1) * share
    below = floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def spread(values: Sequence[Sequence[float]], seed: int = 0) -> Spread | None:
    """Of what each request has, in the order of requests; None where no request has any."""
    stretches = _stretches([one for one in values if one])
    ordered = sorted(value for stretch in stretches for value in stretch)
    if not ordered:
        return None
    mean = sum(ordered) / len(ordered)
    means: list[float] = []
    several: list[list[float]] = []
    if len(stretches) >= LEAST_STRETCHES:
        means, several = _resampled(stretches, random.Random(seed))
    return Spread(
        count=len(ordered),
        mean=_estimate(mean, means),
        quantiles={
            share: _estimate(quantile(ordered, share), [one[at] for one in several])
            for at, share in enumerate(QUANTILES)
        },
        most=ordered[-1],
    )


def _estimate(value: float, drawn: list[float]) -> Estimate:
    if not drawn:
        return Estimate(value)
    drawn.sort()
    low, high = (quantile(drawn, level) for level in LEVELS)
    return Estimate(value, min(low, value), max(high, value))


def _stretches(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Requests in as many stretches as the square root of their number, 32 at most."""
    count = max(1, min(STRETCHES, floor(sqrt(len(values)) + 0.5)))
    bounds = [len(values) * at // count for at in range(count + 1)]
    return [[value for one in values[low:high] for value in one] for low, high in pairwise(bounds)]


def _resampled(
    stretches: list[list[float]], chance: random.Random
) -> tuple[list[float], list[list[float]]]:
    """Means, and QUANTILES, of each resample."""
    sums, counts = [sum(one) for one in stretches], [len(one) for one in stretches]
    values, owners, weights = _cells(stretches)
    means: list[float] = []
    several: list[list[float]] = []
    for _ in range(RESAMPLES):
        drawn = Counter(chance.choices(range(len(stretches)), k=len(stretches)))
        times = [drawn[at] for at in range(len(stretches))]
        total = sum(map(mul, times, counts))
        means.append(sum(map(mul, times, sums)) / total)
        running = list(accumulate(map(mul, weights, map(times.__getitem__, owners))))
        several.append([values[bisect_left(running, share * total)] for share in QUANTILES])
    return means, several


def _cells(stretches: list[list[float]]) -> tuple[list[float], list[int], list[int]]:
    """(value, stretch, how many) in the order of values."""
    rounded = sum(map(len, stretches)) > EXACT_MAX
    found: Counter[tuple[float, int]] = Counter()
    for owner, stretch in enumerate(stretches):
        found.update((_near(value) if rounded else value, owner) for value in stretch)
    cells = sorted(found.items())
    return (
        [value for (value, _), _ in cells],
        [owner for (_, owner), _ in cells],
        [count for _, count in cells],
    )


def _near(value: float) -> float:
    return 1.01 ** round(log(value) / NEAR) if value > 1e-6 else 0.0
