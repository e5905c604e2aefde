#!/usr/bin/env python3
"""What `kvgate plan fit --live` says of a running gateway beside what its clients saw.

`live_plan.py --json -` prints one JSON line; a table goes to stderr. Three runs: slices of the
Mooncake conversation trace, made 32 times smaller (see `scaled`), go by `kvgate load` to a gateway
that records them, in front of simulated engines on a slowed clock. Then the planner reads the
recording, the configuration and the engines that are up, and says which share of requests should
have been in time as the engines are; `differences` are those shares minus what `kvgate load` saw,
in points. They are to be within 5.

The trace is public, under Apache-2.0: see loopback.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonline
import loopback
import rig
import scaled
from rig import Plan
from scaled import BLOCK, Call, Machine

SECRET = "of-this-bench"
LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Case:
    """`speed`: arrivals come so much faster than in the trace."""

    engines: int
    speed: float
    ttft_s: float
    tpot_s: float


CASES = (Case(8, 1.0, 2.0, 0.05), Case(8, 1.5, 2.0, 0.05), Case(6, 1.0, 2.0, 0.025))


def written(calls: list[Call], pace: float, path: Path) -> None:
    """The calls in Mooncake's form with our blocks; a second of the trace takes `pace` real."""
    first = calls[0].at_s
    with path.open("w") as out:
        for call in calls:
            row = {
                "timestamp": (call.at_s - first) * pace * 1e3,
                "input_length": call.input,
                "output_length": call.output,
                "hash_ids": call.blocks[: -(-call.input // BLOCK)],
            }
            out.write(json.dumps(row) + "\n")


def kvgate(*argv: str) -> dict[str, Any]:
    """What a companion says with `--json`."""
    command = [sys.executable, "-m", "gateway", *argv, "--json"]
    done = subprocess.run(
        command, cwd=rig.ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"live_plan.py: {' '.join(argv)}\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(case: Case, calls: list[Call], pace: float) -> dict[str, Any]:
    plan = Plan(case.engines, Machine(), pace, case.ttft_s, case.tpot_s)
    slo = f"ttft={case.ttft_s * pace * 1e3:.0f}ms,tpot={case.tpot_s * pace * 1e3:.0f}ms"
    with tempfile.TemporaryDirectory(prefix="kvgate-live-") as temporary:
        folder = Path(temporary)
        sent, recorded = folder / "sent.jsonl", folder / "recorded.trace"
        written(calls, pace / case.speed, sent)
        balance = plan.kv_aware(rig.model(folder)) + " kv_events auto;"
        (folder / "secret").write_text(SECRET)
        location = f"record {recorded} secret=file:{folder}/secret block={BLOCK};"
        with rig.built(plan, balance, folder, location) as built:
            built.wait_trust("exact")
            seen = kvgate(
                "load", f"http://127.0.0.1:{built.port}", "--trace", str(sent),
                "--block", str(BLOCK), "--model", rig.MODEL, "--slo", slo,
            )  # fmt: skip
            said = kvgate("plan", "fit", "--live", "-c", str(folder / "kvgate.conf"), "--slo", slo)
            late = built.late_s()
    now = said["now"]
    return {
        "layout": now["layout"],
        "speed": case.speed,
        "slo": slo,
        "requests": seen["completed"],
        "recorded": said["requests"],
        "failed": seen["failed"],
        "seen": round(seen["goodput"]["attainment"], 4),
        "predicted": round(now["attainment"], 4),
        "points": round((now["attainment"] - seen["goodput"]["attainment"]) * 100, 2),
        "ttft_seen_s": round(seen["ttft_s"]["mean"]["value"] / pace, 3),
        "ttft_predicted_s": round(now["ttft_mean_s"] / pace, 3),
        "client_loop_p99_ms": round(seen["client"]["loop_p99_s"] * 1e3, 1),
        "engines_late_s": round(late, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    default = os.environ.get("KVGATE_TRACES") or str(rig.ROOT.parent / "shared" / "traces")
    parser.add_argument("--traces", type=Path, default=Path(default), metavar="DIR")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--pace", type=float, default=0.5, help="real seconds for an engine's")
    jsonline.option(parser)
    given = parser.parse_args()
    calls = scaled.read(loopback.find(given.traces), given.requests)
    runs = []
    for case in CASES:
        runs.append(measure(case, calls, given.pace))
        print(json.dumps(runs[-1]), file=sys.stderr)
    points = [run["points"] for run in runs]
    line = {
        "bench": "live_plan",
        "pace": given.pace,
        "runs": runs,
        "differences": points,
        "worst": max(map(abs, points)),
    }
    jsonline.write(line, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
