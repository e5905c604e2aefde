"""How long prompts and answers are: percentiles, and the law that comes nearest.

Laws are fitted by greatest likelihood and judged by the Kolmogorov-Smirnov distance: the largest
gap between the law's distribution and the data's, 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev

SHARES = (0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99, 0.999)
NEAR = 0.05  # a law that is no farther describes the data
POINTS = 20_000  # of the data that laws are judged by


@dataclass(frozen=True, slots=True)
class Law:
    name: str
    parameters: dict[str, float]
    distance: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """In tokens; `at`: percentile -> value. `laws`: nearest first."""

    mean: float
    cv: float
    least: int
    most: int
    at: dict[str, int]
    laws: tuple[Law, ...]


def lengths(values: Sequence[int]) -> Lengths:
    found = sorted(values)
    mean = fmean(found)
    return Lengths(
        mean=mean,
        cv=pstdev(found) / mean,
        least=found[0],
        most=found[-1],
        at={f"p{share * 100:g}": quantile(found, share) for share in SHARES},
        laws=_laws(found),
    )


def quantile(ordered: Sequence[int], share: float) -> int:
    """The value below which that share lies, to the nearest rank."""
    return ordered[round((len(ordered) - 1) * share)]


def _laws(ordered: Sequence[int]) -> tuple[Law, ...]:
    step = max(1, len(ordered) // POINTS)
    points = ordered[::step]
    made = [_exponential(points), _lognormal(points), _weibull(points)]
    laws = [
        Law(name, parameters, _distance(points, cdf))
        for name, parameters, cdf in made
        if cdf is not None
    ]
    return tuple(sorted(laws, key=lambda law: law.distance))


_Made = tuple[str, dict[str, float], Callable[[float], float] | None]


def _exponential(points: Sequence[int]) -> _Made:
    mean = fmean(points)
    return "exponential", {"mean": mean}, lambda x: 1 - math.exp(-x / mean)


def _lognormal(points: Sequence[int]) -> _Made:
    logs = [math.log(x) for x in points]
    mu, sigma = fmean(logs), pstdev(logs)
    if sigma == 0:
        return "lognormal", {}, None
    law = NormalDist(mu, sigma)
    return "lognormal", {"mu": mu, "sigma": sigma}, lambda x: law.cdf(math.log(x))


def _weibull(points: Sequence[int]) -> _Made:
    """Its shape solves sum(x^k ln x) / sum(x^k) - 1/k = mean(ln x), by halving."""
    logs = [math.log(x) for x in points]
    mean, most = fmean(logs), logs[-1]
    if most == logs[0]:
        return "weibull", {}, None

    def excess(shape: float) -> float:
        weights = [math.exp(shape * (x - most)) for x in logs]
        sums = sum(w * x for w, x in zip(weights, logs, strict=True))
        return sums / sum(weights) - 1 / shape - mean

    low, high = 0.05, 50.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    shape = math.sqrt(low * high)
    scale = math.exp(most) * fmean(math.exp(shape * (x - most)) for x in logs) ** (1 / shape)
    return (
        "weibull",
        {"shape": shape, "scale": scale},
        lambda x: 1 - math.exp(-((x / scale) ** shape)),
    )


def _distance(ordered: Sequence[int], cdf: Callable[[float], float]) -> float:
    count = len(ordered)
    gaps = []
    for at, x in enumerate(ordered):
        law = cdf(x)
        gaps.append(max(law - at / count, (at + 1) / count - law))
    return max(gaps)
