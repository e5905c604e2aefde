#!/usr/bin/env python3
"""What a decision and its bookkeeping cost, and how fast recorded traffic is replayed.

`cost.py --json -` prints one JSON line; a table goes to stderr. One thread, minima over rounds:

- `decide_us_64`, `decide_us_1000`: one pick among so many engines under load from eight workers,
  nothing cached anywhere, Python's call included;
- `ticket_us`: a request counted in, at its first token, and out;
- `simulate_us_per_request`: a replay with events of 400 recorded requests, eight engines.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import jsonline  # noqa: E402

from gateway import __version__  # noqa: E402
from gateway.planner.trace_files import load  # noqa: E402
from native._core import Ask, Fit, Index, Ledger, Prompt, Scorer, Ticket, simulate  # noqa: E402

WORKERS = 8
NOW = 1000.0
RECORDED = ROOT / "tests" / "vectors" / "mooncake_conversation_400.jsonl"


def fleet(engines: int) -> tuple[Scorer, list[Ticket]]:
    """A worker's scorer, and what all workers have in flight."""
    first = Ledger(WORKERS, 1024)
    handles = [first.add_engine() for _ in range(engines)]
    index = Index(1 << 24)
    slots = [index.add_engine() for _ in range(engines)]
    fits = [Fit("h100-8b-tp1")] * engines
    scorers = []
    for worker in range(WORKERS):
        ledger = first if worker == 0 else Ledger(WORKERS, 1024, first.fd)
        ledger.bind(worker)
        columns = handles, slots, [1] * engines, [0] * engines, fits, [0] * engines
        scorers.append(Scorer(ledger, index, *columns))
    prompt = Prompt.of_list(list(range(2000)))
    tickets = []
    for at in range(4 * engines):
        choice = scorers[at % WORKERS].at(at % engines, prompt, NOW)
        tickets.append(choice.start(NOW + at * 1e-4))
    return scorers[0], tickets


def least_us(call: Callable[[], object], calls: int, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def figures(rounds: int) -> dict[str, float]:
    prompt = Prompt.of_list(list(range(8192)))
    ask = Ask(ttft_slo_ms=2000.0, tpot_slo_ms=50.0)
    found = {}
    for engines in (64, 1000):
        scorer, tickets = fleet(engines)
        mask = b"\1" * engines
        call = lambda s=scorer, m=mask: s.select(prompt, m, NOW + 1, 7, ask)  # noqa: E731
        found[f"decide_us_{engines}"] = least_us(call, 64_000 // engines, rounds)
        del tickets
    scorer, tickets = fleet(8)
    choice = scorer.at(3, prompt, NOW)

    def life() -> None:
        ticket = choice.start(NOW)
        ticket.first(NOW + 0.1)
        ticket.end(NOW + 0.9, 50)

    found["ticket_us"] = least_us(life, 1000, rounds)
    recorded = load(RECORDED)
    fit = Fit("h100-70b-tp4")

    def replay() -> None:
        simulate(
            recorded.trace, "kvgate", fit, speed=1.5, spread_s=3.0, ttft_slo_ms=2000.0,
            tpot_slo_ms=50.0,
        )  # fmt: skip

    found["simulate_us_per_request"] = least_us(replay, 1, rounds) / len(recorded.trace)
    del tickets
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    jsonline.option(parser)
    options = parser.parse_args()
    found = {name: round(value, 2) for name, value in figures(options.rounds).items()}
    for name, value in found.items():
        print(f"{name:<26}{value:>10.2f}", file=sys.stderr)
    line = {
        "bench": "cost",
        "version": __version__,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()} {os.cpu_count()} cores",
        **found,
    }
    jsonline.write(line, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
