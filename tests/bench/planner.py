#!/usr/bin/env python3
"""The planner's formula beside a replay of the same trace: mean time to the first token.

`planner.py --json -` prints one JSON line; a table goes to stderr. Eight engines of 70B on four
H100 (`h100-70b-tp4`), the Mooncake conversation trace, links of 400 Gbit/s, no SLO, so that routing
does nothing but shorten waits. `worst`: the largest relative error of the formula; it is to be at
most 0.10. `loaded_links` are the same splits over 100 Gbit/s, where transfers queue behind each
other in ways no formula here knows: they are shown, and not held to anything.

The trace is public, under Apache-2.0: see policies.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench")]

from policies import path_of  # noqa: E402

from gateway.planner.fit import Goal, Means, Planner  # noqa: E402
from gateway.planner.queueing import Layout  # noqa: E402
from gateway.planner.trace_files import rows  # noqa: E402

LAYOUTS = (
    Layout(8, 4), Layout(8, 5), Layout(8, 6), Layout(8), Layout(8, 0, 1024),
)  # fmt: skip
LINKS_GB_S = (50.0, 12.5)


def measure(planner: Planner, layout: Layout, gb_s: float, seeds: int) -> dict[str, float]:
    means = Means(link_gb_s=gb_s)
    runs = [planner.replay(layout, Means(link_gb_s=gb_s, seed=seed)) for seed in range(seeds)]
    found = planner.predict(layout, means)
    replayed = fmean(run.mean("ttft") for run in runs)
    return {
        "formula_s": round(found.ttft_s, 3),
        "replay_s": round(replayed, 3),
        "error": round(found.ttft_s / replayed - 1, 4),
        "tpot_formula_ms": round(found.tpot_s * 1e3, 1),
        "tpot_replay_ms": round(fmean(run.mean("tpot") for run in runs) * 1e3, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    default = os.environ.get("KVGATE_TRACES") or str(ROOT.parent / "traces")
    parser.add_argument("--traces", type=Path, default=Path(default), metavar="DIR")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="- = stdout")
    given = parser.parse_args()
    found = rows(path_of(given.traces, "conversation"))
    planner = Planner(found, Goal(0.0, 0.0), lambda *_: None)
    cells: dict[str, dict[str, dict[str, float]]] = {}
    for gb_s in LINKS_GB_S:
        cells[f"{gb_s * 8:g}_gbit"] = {
            f"{layout.name}": measure(
                planner, Layout(8, layout.prefill, layout.chunk_tokens, gb_s), gb_s, given.seeds
            )
            for layout in LAYOUTS
            if layout.prefill or gb_s == LINKS_GB_S[0]
        }
    for link, row in cells.items():
        for name, cell in row.items():
            print(f"{link:<10}{name:<28}{cell['formula_s']:>8.3f} s by formula"
                  f"{cell['replay_s']:>8.3f} s replayed{cell['error']:>+9.1%}",
                  file=sys.stderr)  # fmt: skip
    first, loaded = cells.values()
    worst = max(abs(cell["error"]) for cell in first.values())
    line = {"bench": "planner", "seeds": given.seeds, "cells": first, "loaded_links": loaded,
            "worst": worst}  # fmt: skip
    if given.json == "-":
        print(json.dumps(line))
    elif given.json:
        Path(given.json).write_text(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
