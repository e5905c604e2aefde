"""Servers of one gateway process compared: the same requests to each in short slices, by turns.

Two processes differ by more than what is asked, and a machine from second to second too. So servers
take turns within one process, forwards and backwards (a, b, b, a), beginning with another each
time. Each turn gives one ratio of the CPU time of the gateway's processes; the figure is the median
over the turns, with the interval that holds 95 % of the medians of turns drawn anew.

Instead of timing, instructions in user space can be counted by valgrind's callgrind: no noise
reaches them, but they are fifty times slower to get, and what the kernel does is not in them, so
that a ratio is further from 1 than that of all the work.
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
from dataclasses import dataclass
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
DRAWS = 2000  # turns drawn anew, for the interval
SETTLE_S = 0.002  # after the last answer: what its request still costs belongs to its slice
VALGRIND_S = 300.0  # to start under callgrind
INTERVAL_MS = 5  # between the chunks of a stream
Found = dict[str, list[list[float]]]  # server -> by turn, what its slices cost
Command = Callable[[proxies.Site], list[str]]
Run = Callable[[argparse.Namespace, Path, ExitStack], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Work:
    """What each slice does: `requests` answers over `connections`; `chunks` of each stream, 0 = no
    streams. A slice's cost is given per request, or per chunk.
    """

    turns: int
    requests: int
    warm: int  # requests to each server before
    connections: int
    chunks: int = 0

    @classmethod
    def of(cls, args: argparse.Namespace) -> Work:
        chunks = getattr(args, "chunks", 0)
        return cls(args.turns, args.requests, args.warm, args.connections, chunks)


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


def cpu_by_process(pids: list[int]) -> dict[int, int]:
    """ns of those that still run: what helped a gateway to start may be gone."""
    found = {}
    for pid in pids:
        try:
            found[pid] = proc.cpu_ns([pid])
        except ProcessLookupError:
            continue
    return found


async def ask(load: Load, connections: list[Connection], count: int, chunks: int) -> None:
    """`count` requests, each connection asking again as soon as it has its answer."""
    left = count
    over = asyncio.Event()

    def again(connection: Connection) -> None:
        load.busy -= 1
        if left > 0 and connection.open:
            begin(connection)
        elif not load.busy:
            over.set()

    def begin(connection: Connection) -> None:
        nonlocal left
        left -= 1
        load.busy += 1
        connection.ask(load.ask(chunks > 0, chunks or 20, INTERVAL_MS), again)

    for connection in connections[:count]:
        if not connection.open:
            raise RuntimeError(f"wrong answers: {dict(load.tally.errors)} {load.tally.samples}")
        begin(connection)
    await asyncio.wait_for(over.wait(), GRACE_S * 60)


async def measure(
    work: Work, ports: dict[str, int], pids: list[int], counted: Path | None
) -> Found:
    """`ports`: server -> its own. `counted`: where callgrind writes, None = CPU time. RuntimeError
    where an answer was wrong.
    """
    load = Load([], [])
    opened: dict[str, list[Connection]] = {}
    before = cpu_by_process(pids)
    for name, port in ports.items():
        load.ports = [port]
        opened[name] = await load.open(work.connections)
        await ask(load, opened[name], work.warm, work.chunks)
    after = cpu_by_process(list(before))
    meter: Cpu | Instructions = Cpu(list(after))
    if counted is not None:
        worker = max(after, key=lambda pid: after[pid] - before[pid])
        meter = Instructions(worker, counted)
    found: Found = {name: [] for name in ports}
    names = list(ports)
    for turn in range(work.turns):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in names:
            found[name].append([])
        for name in (*order, *reversed(order)):
            meter.begin()
            await ask(load, opened[name], work.requests, work.chunks)
            await asyncio.sleep(SETTLE_S)
            found[name][turn].append(meter.end() / work.requests / max(work.chunks, 1))
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


# ---- the processes ----


def engines(stack: ExitStack, *options: str, ports: int = 1) -> list[int]:
    """Stand-in engines; their ports."""
    command = [sys.executable, str(HERE / "upstream.py"), "--ports", str(ports), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    stack.callback(proxies.stop, process)
    assert process.stdout is not None
    return [int(port) for port in json.loads(process.stdout.readline())["ports"]]


def under_valgrind(command: list[str], folder: Path) -> list[str]:
    """The gateway under callgrind; only the worker is asked for what it counted."""
    out = f"--callgrind-out-file={folder}/callgrind.%p"
    return ["valgrind", "--quiet", "--tool=callgrind", "--trace-children=yes", out, *command]


def compare(
    args: argparse.Namespace, site: proxies.Site, command: Command, ports: dict[str, int],
    stack: ExitStack,
) -> tuple[Found, str]:  # fmt: skip
    """Starts a gateway and compares its servers; also the unit of the costs."""
    name, made = "kvgate_compared", command
    if args.instructions:
        proxies.START_S = VALGRIND_S

        def made(site: proxies.Site) -> list[str]:
            return under_valgrind(command(site), site.folder)

    proxies.COMMANDS[name] = made
    running = proxies.start(name, site, os.sched_getaffinity(0))
    stack.callback(running.stop)
    counted = site.folder if args.instructions else None
    found = uvloop.run(measure(Work.of(args), ports, running.pids(), counted))
    return found, Instructions.unit if args.instructions else Cpu.unit


def options(doc: str | None, connections: int = 32) -> argparse.ArgumentParser:
    """What all benches of this kind may be told."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    jsonline.option(parser)
    add("--turns", type=int)
    add("--requests", type=int, help="of a slice")
    add("--warm", type=int, help="requests to each server before")
    add("--connections", type=int, default=connections)
    add("--starlette", action="store_true", help="the other lane: `express off`")
    add("--instructions", action="store_true", help="count them, under valgrind")
    return parser


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
