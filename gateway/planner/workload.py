"""What recorded traffic is like: one report of arrivals, lengths, sharing, and what follows of it.

Figures are of the trace as it is; whatever undoes a clock's ticks is named. It knows no text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.planner.arrivals import Arrivals, arrivals
from gateway.planner.lengths import Lengths, lengths
from gateway.planner.sharing import Clients, Prefixes, Tier, Turns, clients, prefixes, tiers, turns
from gateway.planner.trace_files import Rows


@dataclass(frozen=True, slots=True)
class Setting:
    """What traffic is looked at for: tiers of KV memory (name, tokens), the quickest first, and
    prompt tokens of a step."""

    tiers: Sequence[tuple[str, int]] = ()
    chunk_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Workload:
    """`ratio`: prompt tokens per answer token; `uncached_ratio`: of those that an endless cache
    would not save."""

    name: str
    format: str
    skipped: int
    arrivals: Arrivals
    input: Lengths
    output: Lengths
    ratio: float
    uncached_ratio: float
    correlation: float  # of prompt and answer lengths, -1 to 1
    clients: Clients | None
    turns: Turns | None
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
    trace = found.packed().trace
    shared = prefixes(rows, found.block, trace)
    saved = shared.endless_hit if shared else 0.0
    ratio = sum(inputs) / sum(outputs)
    return Workload(
        name=found.name,
        format=found.format,
        skipped=found.skipped,
        arrivals=when,
        input=lengths(inputs),
        output=lengths(outputs),
        ratio=ratio,
        uncached_ratio=ratio * (1 - saved),
        correlation=_correlation(inputs, outputs),
        clients=who,
        turns=deep,
        prefixes=shared,
        tiers=tiers(setting.tiers, trace) if shared and setting.tiers else (),
        setting=setting,
    )


def _correlation(xs: Sequence[int], ys: Sequence[int]) -> float:
    """Pearson's; 0 where one of them does not vary."""
    count = len(xs)
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    both = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    squares = sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys)
    return float(both / squares**0.5) if squares else 0.0
