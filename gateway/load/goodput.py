"""Goodput: how many requests kept every SLO, of those that count, and how sure that is.

Invariant: a failed request is not good and counts; one that its client cancelled, or that the end
of the run cut off, does not count. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from gateway.load.measure import Measured

Z_95 = 1.959964  # of a two-sided 95 % interval


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds, 0 = not set. A TPOT is kept by an answer of one token, which has none."""

    ttft_s: float = 0.0
    tpot_s: float = 0.0
    e2el_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Goodput:
    """`missed`: requests by an SLO that they broke, or `error`; one may be in several. `throughput`
    and `goodput` in requests a second; `low`, `high`: 95 % interval of the attainment (Wilson).
    """

    good: int
    counted: int
    missed: dict[str, int]
    throughput: float
    goodput: float
    attainment: float
    low: float
    high: float


def misses(request: Measured, slo: Slo) -> tuple[str, ...]:
    """What it broke; () = it is good. No output where an SLO wants some breaks that SLO."""
    if request.end != "completed":
        return ("error",)
    broken = []
    if slo.ttft_s and (request.ttft_s is None or request.ttft_s > slo.ttft_s):
        broken.append("ttft")
    if slo.tpot_s and request.tpot_s is not None and request.tpot_s > slo.tpot_s:
        broken.append("tpot")
    if slo.e2el_s and (request.e2el_s is None or request.e2el_s > slo.e2el_s):
        broken.append("e2el")
    return tuple(broken)


def goodput(requests: Sequence[Measured], slo: Slo, window_s: float) -> Goodput:
    """Raises ValueError for a window that is not positive."""
    if not window_s > 0:
        raise ValueError(f"the window must be longer than 0 s, not {window_s}")
    missed: Counter[str] = Counter()
    good = counted = 0
    for request in requests:
        if request.end in ("cancelled", "cut"):
            continue
        counted += 1
        broken = misses(request, slo)
        missed.update(broken)
        good += not broken
    completed = sum(request.end == "completed" for request in requests)
    low, high = wilson(good, counted)
    share = good / counted if counted else 0.0
    rates = completed / window_s, good / window_s
    return Goodput(good, counted, dict(missed), *rates, share, low, high)


def wilson(good: int, counted: int) -> tuple[float, float]:
    """The 95 % score interval of a share (Wilson 1927); (0, 1) where nothing was counted."""
    if not counted:
        return 0.0, 1.0
    share, square = good / counted, Z_95 * Z_95 / counted
    middle = (share + square / 2) / (1 + square)
    half = Z_95 * sqrt(share * (1 - share) / counted + square / counted / 4) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)
