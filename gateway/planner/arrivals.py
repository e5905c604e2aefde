"""When requests come: their rate, how uneven it is, and how it drifts.

The index of dispersion is the variance of counts per window over their mean; the CV of the times
between arrivals their standard deviation over their mean. Both are 1 for arrivals that know nothing
of each other (Poisson) and above 1 for bursts. A clock that ticks makes bursts that are none: where
a trace ticks, figures are given raw and with arrivals spread over their tick.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pstdev

WINDOWS = 24  # of the drift
# Of the index of dispersion; longer ones show swells, shorter ones bursts.
SCALES_S = (1.0, 10.0, 60.0)
LEAST_COUNTS = 10  # windows below which a variance says nothing


@dataclass(frozen=True, slots=True)
class Dispersion:
    """Of counts in windows of so many seconds; None where there are too few windows."""

    by_scale: dict[str, float | None]
    gap_cv: float | None


@dataclass(frozen=True, slots=True)
class Window:
    start_s: float
    requests: int
    rate: float


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`spread`: as `raw` with ticks undone; the same where there are none. `peak_rate`: of the
    busiest window of the drift; `drift`: the CV of its rates, less what chance alone would give.
    """

    requests: int
    span_s: float
    rate: float
    tick_s: float
    raw: Dispersion
    spread: Dispersion
    windows: tuple[Window, ...]
    peak_rate: float
    drift: float


def arrivals(times: Sequence[float], tick_s: float) -> Arrivals:
    """Of times in order, in seconds."""
    span_s = times[-1] - times[0]
    raw = _dispersion(times)
    spread = raw
    if tick_s:
        chance = random.Random(0)
        spread = _dispersion(sorted(at + tick_s * chance.random() for at in times))
    windows = _windows(times, max(span_s, 1e-9))
    counts = [window.requests for window in windows]
    mean = fmean(counts)
    beyond = max(0.0, pstdev(counts) ** 2 - mean)
    return Arrivals(
        requests=len(times),
        span_s=span_s,
        rate=len(times) / span_s if span_s else 0.0,
        tick_s=tick_s,
        raw=raw,
        spread=spread,
        windows=windows,
        peak_rate=max(window.rate for window in windows),
        drift=math.sqrt(beyond) / mean if mean else 0.0,
    )


def dispersion(times: Sequence[float], scale_s: float) -> float | None:
    """The index of dispersion of counts in windows of `scale_s`."""
    start_s = times[0]
    count = math.ceil((times[-1] - start_s) / scale_s)
    if count < LEAST_COUNTS:
        return None
    found = Counter(min(int((at - start_s) / scale_s), count - 1) for at in times)
    mean = len(times) / count
    squares = sum(n * n for n in found.values()) / count
    return (squares - mean * mean) / mean


def gap_cv(times: Sequence[float]) -> float | None:
    gaps = [b - a for a, b in pairwise(times)]
    mean = fmean(gaps) if len(gaps) >= LEAST_COUNTS else 0.0
    return pstdev(gaps) / mean if mean > 0 else None


def _dispersion(times: Sequence[float]) -> Dispersion:
    return Dispersion({f"{s:g}s": dispersion(times, s) for s in SCALES_S}, gap_cv(times))


def _windows(times: Sequence[float], span_s: float) -> tuple[Window, ...]:
    width_s = span_s / WINDOWS
    counts = Counter(min(int((at - times[0]) / width_s), WINDOWS - 1) for at in times)
    return tuple(Window(n * width_s, counts[n], counts[n] / width_s) for n in range(WINDOWS))
