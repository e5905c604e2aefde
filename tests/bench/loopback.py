#!/usr/bin/env python3
"""The real gateway in front of simulated engines, on recorded traffic, beside the simulator.

`loopback.py --json -` prints one JSON line; a table goes to stderr. A slice of the Mooncake
conversation trace, made 32 times smaller (see `scaled`), goes over HTTP to a gateway and 8 engines
on a slowed or hastened clock, once per policy; the simulator gets the same slice and the same
engines (and, for kv_aware without events, a look into them: it has no such mode).

- `serial`: one request at a time, which must find what was expected of it.
- `policies`: goodput (share of requests within the SLO) and hit tokens, here and simulated, and how
  far the orders agree; pairs closer than `--near` in either have no order.
- `errors`: expected minus found tokens under load.
- `approximate`: hit tokens of kv_aware without events over those with.

The trace is public, under Apache-2.0: github.com/kvcache-ai/Mooncake, FAST25-release/traces,
conversation_trace.jsonl. `--traces`, or KVGATE_TRACES, names the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import agreement
import caller
import jsonline
import proc
import rig
import scaled
import uvloop
from caller import Outcome
from rig import MODEL, Plan
from scaled import Call, Machine

from native._core import simulate

EXACT, APPROXIMATE = "kvgate", "kvgate_approximate"
# Policy -> directives of the gateway ({kv}: those of kv_aware), and the simulator's policy.
POLICIES = {
    EXACT: ("{kv} kv_events auto;", "kvgate"),
    APPROXIMATE: ("{kv} kv_events off;", "kvgate"),
    "least_conn": ("least_conn;", "least_requests"),
    "round_robin": ("round_robin;", "round_robin"),
    "random_two": ("random two;", "power_of_two"),
    "hash": ("hash $http_x_prefix consistent;", "consistent_hash"),
}
SEEDS = 5  # of the simulator, where chance decides
SERIAL_PACE = 0.01  # a serial run waits for every answer: its engines need not be slow


def find(folder: Path) -> Path:
    for name in ("mooncake_conversation.jsonl", "conversation_trace.jsonl"):
        if (folder / name).exists():
            return folder / name
    sys.exit(
        f"loopback.py: {folder} has no mooncake_conversation.jsonl or conversation_trace.jsonl\n"
        "    hint: --traces DIR or KVGATE_TRACES names the folder; the file is in "
        "github.com/kvcache-ai/Mooncake under FAST25-release/traces"
    )


def simulated(plan: Plan, calls: list[Call], speed: float, policy: str) -> dict[str, float]:
    """Share of requests in time and hit tokens, in the mean over seeds."""
    runs = [
        simulate(
            scaled.trace(calls),
            POLICIES[policy][1],
            plan.machine.fit(),
            engines=plan.engines,
            capacity_tokens=plan.machine.capacity,
            max_seqs=rig.SEQS,
            speed=speed,
            seed=seed,
            ttft_slo_ms=plan.ttft_s * 1e3,
            tpot_slo_ms=plan.tpot_s * 1e3,
            events=policy != APPROXIMATE,
        )
        for seed in range(SEEDS)
    ]
    return {
        "in_time": round(fmean(r.good(plan.ttft_s, plan.tpot_s) for r in runs) / len(calls), 4),
        "hit_tokens": round(fmean(r.hit_tokens for r in runs)),
        "ttft_mean_s": round(fmean(r.mean("ttft") for r in runs), 3),
    }


class Bench:
    def __init__(self, plan: Plan, speed: float, folder: Path) -> None:
        self.plan, self.speed, self.folder = plan, speed, folder
        self.kv = plan.kv_aware(rig.model(folder))

    def run(self, plan: Plan, policy: str, calls: list[Call], serial: bool) -> dict[str, Any]:
        """Sends the calls through the gateway; `outcomes`, and how well the machine kept up."""
        balance = POLICIES[policy][0].format(kv=self.kv)
        with rig.built(plan, balance, self.folder) as built:
            if policy == EXACT:
                built.wait_trust("exact")
            elif policy == APPROXIMATE:
                built.wait_trust("approximate")
            began, cpu = time.monotonic(), proc.cpu_ns([*built.processes, os.getpid()])
            sending: Awaitable[list[Outcome]]
            if serial:
                sending = caller.one_by_one(built.port, calls, MODEL)
            else:
                sending = caller.at_their_time(built.port, calls, MODEL, plan.pace / self.speed)
            outcomes = uvloop.run(_awaited(sending))
            wall = time.monotonic() - began
            cpu = proc.cpu_ns([*built.processes, os.getpid()]) - cpu
            return {
                "outcomes": outcomes,
                "wall_s": round(wall, 1),
                "cpu_share": round(cpu / 1e9 / wall / (os.cpu_count() or 1), 3),
                "engines_late_share": round(built.late_s() / wall / plan.engines, 4),
                "trust": built.trust(),
            }

    def figures(self, plan: Plan, run: dict[str, Any]) -> dict[str, Any]:
        """What a run came to, in the engines' own time."""
        outcomes: list[Outcome] = run["outcomes"]
        pace = plan.pace
        good = sum(o.good(plan.ttft_s * pace, plan.tpot_s * pace) for o in outcomes)
        right = [o for o in outcomes if not o.error]
        late = sorted(o.late_s for o in outcomes)
        return {
            "in_time": round(good / len(outcomes), 4),
            "hit_tokens": sum(o.cached for o in right),
            "ttft_mean_s": round(fmean(o.ttft_s for o in right) / pace, 3) if right else 0.0,
            "sent_late_p99_ms": round(agreement.quantile(late, 0.99) * 1e3, 2),
            "failed": [o.error for o in outcomes if o.error][:3],
        } | {name: value for name, value in run.items() if name != "outcomes"}


async def _awaited(one: Awaitable[list[Outcome]]) -> list[Outcome]:
    return await one


def pairs(outcomes: list[Outcome]) -> list[tuple[int, int]]:
    return [(o.matched, o.cached) for o in outcomes if not o.error and o.matched >= 0]


def say(text: str) -> None:
    print(f"loopback: {text}", file=sys.stderr, flush=True)


def measure(args: argparse.Namespace, calls: list[Call], folder: Path) -> dict[str, Any]:
    plan = Plan(args.engines, Machine(), args.pace, args.ttft, args.tpot)
    bench = Bench(plan, args.speed, folder)
    line: dict[str, Any] = {}
    if args.serial:
        say(f"{args.serial} requests one by one")
        quick = Plan(args.engines, plan.machine, SERIAL_PACE, 0.0, 0.0)
        run = bench.run(quick, EXACT, calls[: args.serial], serial=True)
        outcomes = run["outcomes"]
        line["serial"] = agreement.errors(pairs(outcomes), sum(o.call.input for o in outcomes))
        line["serial"] |= {"trust": run["trust"], "wall_s": run["wall_s"]}
    here: dict[str, dict[str, Any]] = {}
    there: dict[str, dict[str, float]] = {}
    for policy in args.policies:
        say(f"{len(calls)} requests, {policy}")
        run = bench.run(plan, policy, calls, serial=False)
        here[policy] = bench.figures(plan, run)
        there[policy] = simulated(plan, calls, args.speed, policy)
        if policy in (EXACT, APPROXIMATE):
            found = pairs(run["outcomes"])
            line.setdefault("errors", {})[policy] = agreement.errors(
                found, sum(call.input for call in calls)
            )
    line["policies"] = {name: {"here": here[name], "simulated": there[name]} for name in here}
    if {EXACT, APPROXIMATE} <= here.keys():
        hits = [here[name]["hit_tokens"] for name in (APPROXIMATE, EXACT)]
        line["approximate"] = round(hits[0] / max(hits[1], 1), 4)
    tokens = sum(call.input for call in calls)
    line["agreement"] = {
        "in_time": compared(here, there, "in_time", 1.0, args.near),
        "hit_tokens": compared(here, there, "hit_tokens", tokens, args.near),
    }
    return line


def compared(
    here: dict[str, dict[str, Any]],
    there: dict[str, dict[str, float]],
    name: str,
    whole: float,
    near: float,
) -> dict[str, Any]:
    """Orders by one figure, a share of `whole`."""
    a, b = ({p: row[name] / whole for p, row in rows.items()} for rows in (here, there))
    return {
        "tau": round(agreement.tau(a, b, near), 3),
        "here": agreement.order(a),
        "simulated": agreement.order(b),
        "swapped": agreement.swapped(a, b, near),
    }


def table(line: dict[str, Any]) -> str:
    rows = [
        f"{'':<20}{'in time':>9}{'simulated':>11}{'hit tokens':>12}{'simulated':>11}"
        f"{'TTFT':>8}{'simulated':>11}{'cpu':>7}{'late':>7}"
    ]
    for name, row in line["policies"].items():
        here, there = row["here"], row["simulated"]
        rows.append(
            f"{name:<20}{here['in_time']:>9.3f}{there['in_time']:>11.3f}{here['hit_tokens']:>12}"
            f"{there['hit_tokens']:>11.0f}{here['ttft_mean_s']:>7.2f}s"
            f"{there['ttft_mean_s']:>10.2f}s"
            f"{here['cpu_share']:>7.2f}{here['engines_late_share']:>7.3f}"
        )
    for name in ("serial", "errors", "approximate", "agreement"):
        if name in line:
            rows.append(f"{name}: {json.dumps(line[name])}")
    return "\n".join(rows)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    default = os.environ.get("KVGATE_TRACES") or str(rig.ROOT.parent / "shared" / "traces")
    add("--traces", type=Path, default=Path(default), metavar="DIR")
    add("--requests", type=int, default=1000)
    add("--engines", type=int, default=8)
    add("--speed", type=float, default=1.5, help="arrivals come so much faster")
    add("--pace", type=float, default=0.3, help="real seconds for one of the engines'")
    add("--ttft", type=float, default=2.0, help="SLO, s of the engines' time")
    add("--tpot", type=float, default=0.05, help="SLO, s of the engines' time")
    add("--serial", type=int, default=400, help="requests sent one by one; 0 = none")
    add("--policies", type=lambda text: text.split(","), default=list(POLICIES), metavar="A,B")
    add("--near", type=float, default=0.02, help="shares that are as good as equal")
    jsonline.option(parser)
    return parser.parse_args()


def main() -> int:
    args = options()
    calls = scaled.read(find(args.traces), args.requests)
    with tempfile.TemporaryDirectory(prefix="kvgate-loopback-") as folder:
        line = measure(args, calls, Path(folder))
    shown = {k: v for k, v in vars(args).items() if k not in ("json", "traces", "policies")}
    line |= {"bench": "loopback", "when": datetime.now(UTC).isoformat(timespec="seconds")}
    line["options"] = shown
    print(table(line), file=sys.stderr)
    jsonline.write(line, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
