"""How two orders agree, and how expected tokens agree with found ones. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any


def order(scores: Mapping[str, float]) -> list[str]:
    """Names, best first."""
    return sorted(scores, key=lambda name: -scores[name])


def tau(a: Mapping[str, float], b: Mapping[str, float], near: float) -> float:
    """Kendall's tau of two scores of the same names, over the pairs that are further apart than
    `near` in both: 1.0 = the same order, -1.0 = the opposite. Pairs within `near` have no order.
    """
    signs = []
    for one, other in combinations(sorted(a), 2):
        x, y = a[one] - a[other], b[one] - b[other]
        if abs(x) > near and abs(y) > near:
            signs.append(1 if (x > 0) == (y > 0) else -1)
    return fmean(signs) if signs else 1.0


def swapped(a: Mapping[str, float], b: Mapping[str, float], near: float) -> list[str]:
    """Pairs that the two put in different orders, both by more than `near`."""
    found = []
    for one, other in combinations(order(a), 2):
        if a[one] - a[other] > near and b[other] - b[one] > near:
            found.append(f"{one} > {other}")
    return found


def quantile(ranked: Sequence[float], share: float) -> float:
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0


def errors(pairs: Sequence[tuple[int, int]], prompt_tokens: int) -> dict[str, Any]:
    """Of (expected, found) tokens of each request: expected minus found, in tokens."""
    signed = [float(expected - found) for expected, found in pairs]
    sizes = sorted(map(abs, signed))
    total = sum(found for _, found in pairs)
    return {
        "requests": len(pairs),
        "share_zero": round(sum(size == 0 for size in sizes) / max(len(sizes), 1), 4),
        "too_many": sum(value > 0 for value in signed),
        "too_few": sum(value < 0 for value in signed),
        "mean": round(fmean(signed), 2) if signed else 0.0,
        "mean_abs": round(fmean(sizes), 2) if sizes else 0.0,
        "abs_p50": quantile(sizes, 0.5),
        "abs_p90": quantile(sizes, 0.9),
        "abs_p99": quantile(sizes, 0.99),
        "abs_max": sizes[-1] if sizes else 0.0,
        "expected": sum(expected for expected, _ in pairs),
        "found": total,
        "abs_over_found": round(sum(sizes) / max(total, 1), 4),
        "abs_over_prompts": round(sum(sizes) / max(prompt_tokens, 1), 5),
    }
