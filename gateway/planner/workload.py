"""What recorded traffic is like: one report of arrivals, lengths, sharing, and what follows of it.

Figures are of the trace as it is; whatever undoes a clock's ticks is named. It knows no text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import StatisticsError, correlation
from typing import Any

from gateway.planner.arrivals import Arrivals, arrivals
from gateway.planner.lengths import Lengths, lengths
from gateway.planner.sharing import Clients, Prefixes, Tier, Turns, clients, prefixes, tiers, turns
from gateway.planner.trace_files import Hashed, Rows


@dataclass(frozen=True, slots=True)
class Setting:
    """What traffic is looked at for: tiers of KV memory (name, tokens), the quickest first, and
    prompt tokens of a step."""

    tiers: Sequence[tuple[str, int]] = ()
    chunk_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Workload:
    """`ratio`: prompt tokens per answer token; `uncached_ratio`: of those that an endless cache
    would not save, None where blocks of too few requests are known. `prefixes` and `tiers` are of
    the `hashed` requests."""

    name: str
    format: str
    skipped: int
    arrivals: Arrivals
    input: Lengths
    output: Lengths
    ratio: float
    uncached_ratio: float | None
    correlation: float  # of prompt and answer lengths, -1 to 1
    clients: Clients | None
    turns: Turns | None
    hashed: Hashed
    prefixes: Prefixes | None
    tiers: tuple[Tier, ...]
    setting: Setting

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        if found["prefixes"]:
            curve = found["prefixes"]["curve"]
            found["prefixes"]["curve"] = {str(size): rate for size, rate in curve.items()}
        return found


def analyse(
    found: Rows, setting: Setting, told: Callable[[str], None] = lambda _: None
) -> Workload:
    """`told`: hears what is being done, for who waits."""
    rows = found.rows
    told("arrivals")
    when = arrivals([row.at_s for row in rows], found.tick_s)
    told("lengths")
    inputs, outputs = [row.input for row in rows], [row.output for row in rows]
    told("conversations")
    deep, who = turns(rows, found.block), clients(rows)
    told("reuse distances")
    known, hashed = found.only_hashed(), found.hashed
    shared: Prefixes | None = None
    caches: tuple[Tier, ...] = ()
    if known.rows:
        trace = known.packed().trace
        shared = prefixes(known.rows, found.block, trace)
        caches = tiers(setting.tiers, trace) if setting.tiers else ()
    ratio = sum(inputs) / sum(outputs)
    return Workload(
        name=found.name,
        format=found.format,
        skipped=found.skipped,
        arrivals=when,
        input=lengths(inputs),
        output=lengths(outputs),
        ratio=ratio,
        uncached_ratio=ratio * (1 - shared.endless_hit) if shared and hashed.is_enough else None,
        correlation=_correlation(inputs, outputs),
        clients=who,
        turns=deep,
        hashed=hashed,
        prefixes=shared,
        tiers=caches,
        setting=setting,
    )


def _correlation(xs: Sequence[int], ys: Sequence[int]) -> float:
    """Pearson's; 0 where one of them does not vary."""
    try:
        return correlation(xs, ys)
    except StatisticsError:
        return 0.0
