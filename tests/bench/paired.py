#!/usr/bin/env python3
"""What an operator's configuration costs a request, measured inside one gateway process.

`paired.py --json -` prints one JSON line; a table goes to stderr. Two processes differ by more than
what is asked here, and a machine from second to second too. So one gateway has three servers, each
on a port of its own: `plain`, `twin` (the same once more) and `realistic`, that of realistic.conf;
maps and the log's form stand around all three, but the plain ones use none of them. They take turns
in short slices of the same requests, forwards and backwards (plain, twin, realistic, realistic,
twin, plain). Each turn gives one ratio of the CPU time of the gateway's processes, the figure is
the median over the turns, with the interval that holds 95 % of the medians of turns drawn anew.
`twin` / `plain` has to come out as 1: it says what this run can tell apart.

`--instructions` counts instead of timing, which no noise reaches: instructions in user space of
the worker, by valgrind's callgrind (fifty times slower; what the kernel does is not in it, so that
the ratio is further from 1 than that of all the work).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import jsonline
import proc
import proxies
import uvloop
from client import Connection
from offer import GRACE_S, Load

HERE = Path(__file__).parent
TURN = ("plain", "twin", "realistic", "realistic", "twin", "plain")
DRAWS = 2000  # turns drawn anew, for the interval
SETTLE_S = 0.002  # after the last answer: what its request still costs belongs to its slice
VALGRIND_S = 300.0  # to start under callgrind
PLAIN = """
    server {
        listen 127.0.0.1:@PLAIN@ backlog=4096;
        keepalive_requests 1000000;
        access_log @DIR@/@PLAIN@.log;
        location /v1/ { proxy_pass http://bench; proxy_read_timeout 600s; express @EXPRESS@; }
        location = /metrics { metrics; }
    }
"""


def configuration(ports: dict[str, int]) -> str:
    """realistic.conf with plain servers in it. Ports: name of a server -> its own."""
    text = (HERE / "realistic.conf").read_text()
    servers = [PLAIN.replace("@PLAIN@", str(ports[name])) for name in ("plain", "twin")]
    return text.rstrip().removesuffix("}") + "".join(servers) + "}\n"


# ---- what one slice costs ----


class Cpu:
    """CPU time of the gateway's processes, µs."""

    unit = "us"

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._at = 0

    def begin(self) -> None:
        self._at = proc.cpu_ns(self._pids)

    def end(self) -> float:
        return (proc.cpu_ns(self._pids) - self._at) / 1000


class Instructions:
    """Instructions of the worker in user space, as callgrind counts them."""

    unit = "instructions"

    def __init__(self, worker: int, folder: Path) -> None:
        self._worker, self._folder = worker, folder
        self._dumps = 0

    def begin(self) -> None:
        self._dump()

    def end(self) -> float:
        return self._dump()

    def _dump(self) -> float:
        """Instructions since the last call."""
        command = ["callgrind_control", "--dump", str(self._worker)]
        subprocess.run(command, check=True, capture_output=True, timeout=GRACE_S * 6)
        self._dumps += 1
        path = self._folder / f"callgrind.{self._worker}.{self._dumps}"
        found = re.search(r"^(?:summary|totals): (\d+)$", path.read_text(), re.MULTILINE)
        path.unlink()
        if found is None:
            raise RuntimeError(f"{path}: no sum in callgrind's dump")
        return float(found[1])


async def ask(load: Load, connections: list[Connection], count: int) -> None:
    """`count` requests, each connection asking again as soon as it has its answer."""
    left = count
    over = asyncio.Event()

    def again(connection: Connection) -> None:
        nonlocal left
        load.busy -= 1
        if left > 0 and connection.open:
            left -= 1
            load.busy += 1
            connection.ask(load.ask(False, 20, 0), again)
        elif not load.busy:
            over.set()

    for connection in connections[:count]:
        left -= 1
        load.busy += 1
        connection.ask(load.ask(False, 20, 0), again)
    await asyncio.wait_for(over.wait(), GRACE_S * 30)


async def measure(
    args: argparse.Namespace, ports: dict[str, int], pids: list[int], folder: Path
) -> dict[str, list[list[float]]]:
    """Server -> its slices' cost per request, by turn. RuntimeError where an answer was wrong."""
    load = Load([], [])
    opened: dict[str, list[Connection]] = {}
    before = {pid: proc.cpu_ns([pid]) for pid in pids}
    for name, port in ports.items():
        load.ports = [port]
        opened[name] = await load.open(args.connections)
        await ask(load, opened[name], args.warm)
    meter: Cpu | Instructions = Cpu(pids)
    if args.instructions:
        meter = Instructions(max(pids, key=lambda pid: proc.cpu_ns([pid]) - before[pid]), folder)
    found: dict[str, list[list[float]]] = {name: [] for name in ports}
    for turn in range(args.turns):
        for name in found:
            found[name].append([])
        for name in TURN if turn % 2 else (*TURN[3:], *TURN[:3]):
            meter.begin()
            await ask(load, opened[name], args.requests)
            await asyncio.sleep(SETTLE_S)
            found[name][turn].append(meter.end() / args.requests)
    if load.tally.errors or load.tally.closed:
        raise RuntimeError(f"wrong answers: {dict(load.tally.errors)} {load.tally.samples}")
    return found


# ---- what it comes to ----


def ratio(over: list[list[float]], under: list[list[float]]) -> dict[str, float]:
    """Median of the turns' ratios, and the interval that holds 95 % of medians of such runs."""
    logs = [log(sum(a) / sum(b)) for a, b in zip(over, under, strict=True)]
    draw = random.Random(1)
    medians = sorted(median(draw.choices(logs, k=len(logs))) for _ in range(DRAWS))
    low, high = medians[DRAWS // 40], medians[-1 - DRAWS // 40]
    return {
        "median": round(exp(median(logs)), 4),
        "low": round(exp(low), 4),
        "high": round(exp(high), 4),
    }


def summary(found: dict[str, list[list[float]]], unit: str) -> dict[str, Any]:
    each = {name: [cost for turn in turns for cost in turn] for name, turns in found.items()}
    return {
        "unit": unit,
        "per_request": {name: round(median(costs), 2) for name, costs in each.items()},
        "least": {name: round(min(costs), 2) for name, costs in each.items()},
        "realistic": ratio(found["realistic"], found["plain"]),
        "realistic_to_twin": ratio(found["realistic"], found["twin"]),
        "twin": ratio(found["twin"], found["plain"]),
    }


def table(line: dict[str, Any]) -> str:
    rows = [f"{'':<12}{line['unit'] + ' a request':>24}{'least':>14}{'ratio to plain':>26}"]
    for name in ("plain", "twin", "realistic"):
        told = ""
        if name in line:
            one = line[name]
            told = f"{one['median']:.3f} ({one['low']:.3f} to {one['high']:.3f})"
        cost, least = line["per_request"][name], line["least"][name]
        rows.append(f"{name:<12}{cost:>24.2f}{least:>14.2f}{told:>26}")
    return "\n".join(rows)


# ---- the gateway ----


def valgrind(site: proxies.Site) -> list[str]:
    """The gateway under callgrind; only the worker is asked for what it counted."""
    command = proxies.COMMANDS["kvgate"](site)
    out = f"--callgrind-out-file={site.folder}/callgrind.%p"
    return ["valgrind", "--quiet", "--tool=callgrind", "--trace-children=yes", out, *command]


def run(args: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "upstream.py"), "--ports", "2"]
    engines = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    stack.callback(proxies.stop, engines)
    assert engines.stdout is not None
    a, b = json.loads(engines.stdout.readline())["ports"]
    ports = {name: proxies.free_port() for name in ("plain", "twin", "realistic")}
    conf = configuration(ports).replace("@EXPRESS@", "off" if args.starlette else "on")
    site = proxies.Site(folder, ports["realistic"], (a, b), kvgate_conf=conf)
    name = "kvgate"
    if args.instructions:
        name = "kvgate_valgrind"
        proxies.COMMANDS[name] = valgrind
        proxies.START_S = VALGRIND_S
    gateway = proxies.start(name, site, os.sched_getaffinity(0))
    stack.callback(gateway.stop)
    measured = uvloop.run(measure(args, ports, gateway.pids(), folder))
    return summary(measured, Instructions.unit if args.instructions else Cpu.unit)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    jsonline.option(parser)
    add("--turns", type=int, help="150; 3 with --instructions")
    add("--requests", type=int, help="of a slice: 320; 96 with --instructions")
    add("--warm", type=int, help="requests to each server before: 2000; 200 with --instructions")
    add("--connections", type=int, default=32)
    add("--starlette", action="store_true", help="the other lane: `express off`")
    add("--instructions", action="store_true", help="count them, under valgrind")
    args = parser.parse_args()
    few = args.instructions
    args.turns = args.turns or (3 if few else 150)
    args.requests = args.requests or (96 if few else 320)
    args.warm = args.warm or (200 if few else 2000)
    return args


Run = Callable[[argparse.Namespace, Path, ExitStack], dict[str, Any]]


def measured(
    name: str, args: argparse.Namespace, run: Run, table: Callable[[dict[str, Any]], str]
) -> int:
    """Runs a bench in a folder of its own, and writes its table and its line."""
    proc.raise_file_limit()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"kvgate-{name}-"))
        line = run(args, Path(folder), stack)
    line |= {"bench": name, "when": datetime.now(UTC).isoformat(timespec="seconds")}
    line["options"] = {key: value for key, value in vars(args).items() if key != "json"}
    print(table(line), file=sys.stderr)
    jsonline.write(line, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(measured("paired", options(), run, table))
