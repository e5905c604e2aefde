#!/usr/bin/env python3
"""Prefill and answers on one engine or on two, simulated: when does moving the KV pay?

`disagg.py --json -` prints one JSON line; a table goes to stderr. Eight engines of 70B on four
H100 (`h100-70b-tp4`), the Mooncake conversation trace, TTFT <= 2 s; a cell is a link (GB/s of each
engine, shared by the transfers from and to it) and an SLO per token. Arms:

- aggregated_8192, aggregated_1024: every engine does all of a request, tokens of a step as named;
- 4p4d, 5p3d, 6p2d: fixed splits, every request has two legs;
- always: engines do both, every request has two legs, the pair is chosen by cost;
- auto: engines do both, one leg or two by cost, 1024 tokens a step;
- elastic: auto with roles that follow the load;
- elastic_8192: the same with 8192 tokens a step, beside the comparison.

All are routed by the cost that production runs. A figure is the share of requests in time, in the
mean over seeds. `worst_margin`: the least of elastic minus the best arm that is not auto or
elastic; `cells_won_share`: the share of cells where it is above zero; `margins_8192`: the same of
elastic_8192; `margins_chosen`: the same of elastic with the chunk with which one engine per request
does better under the cell's SLO per token. That is known without a link, and an operator sets it
once: `kvgate plan fit` replays the chunks.

The trace is public, under Apache-2.0: see policies.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench")]

import jsonline  # noqa: E402
from policies import find, traces_option  # noqa: E402

from gateway import __version__  # noqa: E402
from gateway.planner.replay import OURS  # noqa: E402
from gateway.planner.trace_files import Recorded  # noqa: E402
from native._core import Duet, Fit, simulate  # noqa: E402

PROFILE = "h100-70b-tp4"
ENGINES = 8
LINKS_GB_S = (1.25, 5.0, 12.5, 50.0)
TPOT_MS = (25, 50, 100)
TTFT_S = 2.0
DWELL_S = 60.0


@dataclass(frozen=True, slots=True)
class Arm:
    """`roles` "": no second leg is thought of, and the link does not matter."""

    roles: str = ""
    force: int = 0
    chunk: int = 1024
    dwell_s: float = 0.0


MIXED = "m" * ENGINES
ARMS = {
    "aggregated_8192": Arm(chunk=8192),
    "aggregated_1024": Arm(),
    "4p4d": Arm("ppppdddd", 1, 8192),
    "5p3d": Arm("pppppddd", 1, 8192),
    "6p2d": Arm("ppppppdd", 1, 8192),
    "always": Arm(MIXED, 1),
    "auto": Arm(MIXED),
    "elastic": Arm(MIXED, dwell_s=DWELL_S),
    "elastic_8192": Arm(MIXED, chunk=8192, dwell_s=DWELL_S),
}
OTHERS = ("aggregated_8192", "aggregated_1024", "4p4d", "5p3d", "6p2d", "always")


@dataclass(frozen=True, slots=True)
class Found:
    in_time: float
    ttft_in_time: float
    two_legs: float
    moves: float


def measure(recorded: Recorded, arm: Arm, gb_s: float, tpot_ms: int, seeds: int) -> Found:
    """Means over seeds."""
    duet = Duet(arm.roles, arm.force, gb_s, None, arm.dwell_s) if arm.roles else None
    runs = [
        simulate(
            recorded.trace,
            OURS,
            Fit(PROFILE, None, arm.chunk),
            engines=ENGINES,
            spread_s=recorded.tick_s,
            seed=seed,
            ttft_slo_ms=TTFT_S * 1e3,
            tpot_slo_ms=float(tpot_ms),
            duet=duet,
        )
        for seed in range(seeds)
    ]
    requests = runs[0].requests
    return Found(
        fmean(run.good(TTFT_S, tpot_ms / 1e3) for run in runs) / requests,
        fmean(run.good(TTFT_S, 0.0) for run in runs) / requests,
        fmean(run.transfers[0] for run in runs) / requests,
        fmean(len(run.moves) for run in runs),
    )


def at_1024(_: dict[str, float]) -> str:
    return "elastic"


def at_8192(_: dict[str, float]) -> str:
    return "elastic_8192"


def at_chosen(row: dict[str, float]) -> str:
    """By chunk, what one engine per request says of it."""
    is_long = row["aggregated_8192"] > row["aggregated_1024"]
    return "elastic_8192" if is_long else "elastic"


def margins(
    rows: Iterable[dict[str, float]], ours: Callable[[dict[str, float]], str]
) -> dict[str, float]:
    """The worst margin over the best other, and the share of cells won."""
    gaps = [row[ours(row)] - max(row[other] for other in OTHERS) for row in rows]
    won = fmean(gap > 0.0 for gap in gaps)
    return {"worst": round(min(gaps), 4), "won_share": round(won, 4)}


def table(cells: dict[str, dict[str, float]]) -> str:
    names = [name.replace("aggregated", "agg") for name in ARMS]
    lines = [f"{'GB/s, TPOT':<14}" + "".join(f"{name:>13}" for name in names)]
    lines += [
        f"{cell:<14}" + "".join(f"{row[name]:>13.3f}" for name in ARMS)
        for cell, row in cells.items()
    ]
    return "\n".join(lines)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    traces_option(parser)
    add("--seeds", type=int, default=5)
    jsonline.option(parser)
    return parser.parse_args()


def main() -> int:
    given = options()
    recorded = find(given.traces, "conversation")
    started = time.perf_counter()
    asked = {
        # Without a second leg one link is as good as another.
        (name, gb_s if arm.roles else 0.0, tpot_ms): arm
        for name, arm in ARMS.items()
        for gb_s in LINKS_GB_S
        for tpot_ms in TPOT_MS
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = pool.map(
            lambda key: measure(recorded, asked[key], key[1] or 12.5, key[2], given.seeds), asked
        )
        found = dict(zip(asked, runs, strict=True))

    def column(value: str) -> dict[str, dict[str, float]]:
        return {
            f"{gb_s:g}gb_{tpot_ms}ms": {
                name: round(getattr(found[name, gb_s if arm.roles else 0.0, tpot_ms], value), 4)
                for name, arm in ARMS.items()
            }
            for gb_s in LINKS_GB_S
            for tpot_ms in TPOT_MS
        }

    cells = column("in_time")
    asked_for = margins(cells.values(), at_1024)
    print(table(cells), file=sys.stderr)
    line = {
        "bench": "disagg",
        "version": __version__,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()} {os.cpu_count()} cores",
        "seeds": given.seeds,
        "seconds": round(time.perf_counter() - started, 1),
        "cells": cells,
        "ttft_in_time": column("ttft_in_time"),
        "two_legs": column("two_legs"),
        "moves": column("moves"),
        "worst_margin": asked_for["worst"],
        "cells_won_share": asked_for["won_share"],
        "margins_8192": margins(cells.values(), at_8192),
        "margins_chosen": margins(cells.values(), at_chosen),
    }
    jsonline.write(line, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
