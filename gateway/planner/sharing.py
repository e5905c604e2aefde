"""Who asks and what prompts share: clients, turns of conversations, prefixes, reuse.

A cache of any size is judged by reuse distances (native `Trace.hits`): one least-recently-used
cache in front of all engines, which no way of routing can beat with as much memory in sum, other
ways of forgetting apart. Shares are of prompt tokens. What is said of prefixes is of requests whose
blocks are known: one without hashes is not one that shares nothing.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from gateway.planner.arrivals import gap_cv
from gateway.planner.trace_formats import Row
from native._core import Trace

# Tokens.
SIZES = tuple(size * 1000 for size in (
    125, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000,
))  # fmt: skip
ENDLESS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Clients:
    """`top_share`: of requests, by the one that asks most; `for_90`: how many make 90 % of them.
    `gap_cv`: of times between a client's requests, weighted by its requests."""

    count: int
    top_share: float
    for_90: int
    gap_cv: float | None


@dataclass(frozen=True, slots=True)
class Turns:
    """`source`: `sessions` where the trace says them, `prefixes` where a prompt that begins with
    all full blocks of an earlier one, the last of them new, is taken for its next turn. `share`: of
    requests that are a later turn; by prefixes, of those whose blocks are known."""

    source: str
    sessions: int
    mean: float
    deepest: int
    share: float


@dataclass(frozen=True, slots=True)
class Tier:
    """`tokens`: of it and all tiers before it; `hit` and `gain` of prompt tokens."""

    name: str
    tokens: int
    hit: float
    gain: float


@dataclass(frozen=True, slots=True)
class Prefixes:
    """`endless_hit`: of an endless cache. `shared_blocks`: share of blocks that are used again;
    `top_prefix`: share of requests whose first block is the most frequent one. `curve`: cache
    tokens -> hit rate. `half_tokens`: the least cache of the curve with half of `endless_hit`."""

    block: int
    endless_hit: float
    requests_hit: float
    shared_blocks: float
    top_prefix: float
    curve: dict[int, float]
    half_tokens: int | None


def clients(rows: Sequence[Row]) -> Clients | None:
    """None where the trace does not say who asks."""
    times: dict[str, list[float]] = {}
    for row in rows:
        if row.client:
            times.setdefault(row.client, []).append(row.at_s)
    if not times:
        return None
    counts = sorted((len(found) for found in times.values()), reverse=True)
    total, so_far, needed = sum(counts), 0, 0
    for needed, count in enumerate(counts, 1):  # noqa: B007
        so_far += count
        if so_far >= 0.9 * total:
            break
    return Clients(len(counts), counts[0] / total, needed, _gap_cv(times.values()))


def _gap_cv(times: Iterable[Sequence[float]]) -> float | None:
    known = [(cv, len(found)) for found in times if (cv := gap_cv(found)) is not None]
    return fmean(*zip(*known, strict=True)) if known else None


def turns(rows: Sequence[Row], block: int) -> Turns | None:
    """None where there are neither sessions nor prefixes."""
    if any(row.session for row in rows):
        counts = Counter(row.session for row in rows if row.session)
        lone = sum(not row.session for row in rows)
        depths = [*counts.values(), *[1] * lone]
        later = sum(counts.values()) - len(counts)
        return Turns("sessions", len(depths), fmean(depths), max(depths), later / len(rows))
    rows = [row for row in rows if row.blocks is not None]
    if not rows:
        return None
    # The last full block of a prompt -> how deep its turn was. It must have been new there, and has
    # one next turn: what many prompts begin with is no conversation.
    ends: dict[int, int] = {}
    seen: set[int] = set()
    found: list[int] = []
    for row in rows:
        full = (row.blocks or [])[: row.input // block]
        last = next((id for id in reversed(full) if id in ends), None)
        depth = 1 + (ends.pop(last) if last is not None else 0)
        found.append(depth)
        if full and full[-1] not in seen:
            ends[full[-1]] = depth
        seen.update(full)
    first = found.count(1)
    return Turns("prefixes", first, len(found) / first, max(found), 1 - first / len(found))


def prefixes(rows: Sequence[Row], block: int, trace: Trace) -> Prefixes:
    """Of rows that have blocks, at least one, and their trace."""
    packed = [array("I", one) for one in trace.hits([*SIZES, ENDLESS])]
    rates = [sum(one) / trace.input_tokens for one in packed]
    uses = Counter(id for row in rows for id in row.blocks or ())
    firsts = Counter(row.blocks[0] for row in rows if row.blocks)
    curve = dict(zip(SIZES, rates, strict=False))
    half = next((size for size, rate in curve.items() if rate >= rates[-1] / 2 > 0), None)
    return Prefixes(
        block=block,
        endless_hit=rates[-1],
        requests_hit=sum(hit > 0 for hit in packed[-1]) / len(rows),
        shared_blocks=sum(n for n in uses.values() if n > 1) / max(1, uses.total()),
        top_prefix=firsts.most_common(1)[0][1] / len(rows),
        curve=curve,
        half_tokens=half,
    )


def tiers(sizes: Sequence[tuple[str, int]], trace: Trace) -> tuple[Tier, ...]:
    """What each tier adds; sizes in tokens, the quickest first."""
    total, sums = 0, []
    for _, tokens in sizes:
        total += tokens
        sums.append(total)
    rates = [sum(array("I", one)) / trace.input_tokens for one in trace.hits(sums)]
    gains = [after - before for before, after in pairwise([0.0, *rates])]
    return tuple(
        Tier(name, tokens, rate, gain)
        for (name, _), tokens, rate, gain in zip(sizes, sums, rates, gains, strict=True)
    )
