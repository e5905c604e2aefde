#!/usr/bin/env python3
"""What metrics and the access log cost a request and a chunk, measured inside one gateway process.

`counting.py --json -` prints one JSON line; a table goes to stderr. One gateway has servers that
differ in this only: `on` counts and writes the default access log, `twin` is the same once more,
`off` neither counts nor logs (uncounted.py), and `blind` is `off` in front of an engine whose
streams do not call themselves event streams, so that not even their events are looked at (routing
by prompts needs to see them anyhow). They take turns as in paired.py, whose figures and whose
`--instructions` this has, too: the figure is on / off, the median over turns with its interval.

`--chunks N` measures streams of so many chunks, 5 ms apart, and the figures are per chunk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import jsonline
import paired
import proc
import proxies
import uvloop
from client import Connection
from offer import GRACE_S, Load

HERE = Path(__file__).parent
NAMES = ("on", "twin", "off", "blind")
INTERVAL_MS = 5
HEAD = """
worker_processes 1; pid @DIR@/kvgate.pid; error_log @DIR@/error.log notice;
events { worker_connections 9000; }
http {
    access_log @DIR@/access.log;
    upstream bench { server 127.0.0.1:@A@; keepalive 256; slo ttft=2s tpot=50ms; }
    upstream opaque { server 127.0.0.1:@B@; keepalive 256; }
"""
SERVER = """
    server {
        listen 127.0.0.1:%d backlog=4096; server_name %s; %s
        keepalive_requests 1000000; keepalive_timeout 3600s;
        location /v1/ { proxy_pass http://%s; proxy_read_timeout 600s; express @EXPRESS@; }
        location = /metrics { metrics; }
    }
"""


def configuration(ports: dict[str, int], log: bool) -> str:
    servers = [
        SERVER % (
            port, name, "" if log and name in ("on", "twin") else "access_log off;",
            "opaque" if name == "blind" else "bench",
        )
        for name, port in ports.items()
    ]  # fmt: skip
    return HEAD + "".join(servers) + "}\n"


async def ask(load: Load, connections: list[Connection], count: int, chunks: int) -> None:
    """`count` requests, each connection asking again as soon as it has its answer."""
    left = count
    over = asyncio.Event()

    def again(connection: Connection) -> None:
        nonlocal left
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
    args: argparse.Namespace, ports: dict[str, int], pids: list[int], folder: Path
) -> dict[str, list[list[float]]]:
    """Server -> its slices' cost, by turn. RuntimeError where an answer was wrong."""
    load = Load([], [])
    opened: dict[str, list[Connection]] = {}
    before = {pid: proc.cpu_ns([pid]) for pid in pids}
    for name, port in ports.items():
        load.ports = [port]
        opened[name] = await load.open(args.connections)
        await ask(load, opened[name], args.warm, args.chunks)
    meter: paired.Cpu | paired.Instructions = paired.Cpu(pids)
    if args.instructions:
        worker = max(pids, key=lambda pid: proc.cpu_ns([pid]) - before[pid])
        meter = paired.Instructions(worker, folder)
    found: dict[str, list[list[float]]] = {name: [] for name in ports}
    for turn in range(args.turns):
        order = list(ports)[turn % len(ports) :] + list(ports)[: turn % len(ports)]
        for name in ports:
            found[name].append([])
        for name in (*order, *reversed(order)):
            meter.begin()
            await ask(load, opened[name], args.requests, args.chunks)
            await asyncio.sleep(paired.SETTLE_S)
            found[name][turn].append(meter.end() / args.requests / max(args.chunks, 1))
    if load.tally.errors or load.tally.closed:
        raise RuntimeError(f"wrong answers: {dict(load.tally.errors)} {load.tally.samples}")
    return found


def summary(found: dict[str, list[list[float]]], unit: str) -> dict[str, Any]:
    each = {name: [cost for turn in turns for cost in turn] for name, turns in found.items()}
    return {
        "unit": unit,
        "cost": {name: round(median(costs), 3) for name, costs in each.items()},
        "on_to_off": paired.ratio(found["on"], found["off"]),
        "on_to_blind": paired.ratio(found["on"], found["blind"]),
        "twin": paired.ratio(found["twin"], found["on"]),
    }


def table(line: dict[str, Any]) -> str:
    rows = [f"{name:<12}{cost:>14.3f} {line['unit']}" for name, cost in line["cost"].items()]
    for name in ("on_to_off", "on_to_blind", "twin"):
        one = line[name]
        rows.append(f"{name:<12}{one['median']:>14.3f} ({one['low']:.3f} to {one['high']:.3f})")
    return "\n".join(rows)


def gateway(site: proxies.Site) -> list[str]:
    _, *command = proxies.COMMANDS["kvgate"](site)
    return [sys.executable, str(HERE / "uncounted.py"), *command[command.index("gateway") + 1 :]]


def counted_instructions(site: proxies.Site) -> list[str]:
    out = f"--callgrind-out-file={site.folder}/callgrind.%p"
    command = ["valgrind", "--quiet", "--tool=callgrind", "--trace-children=yes", out]
    return [*command, *gateway(site)]


def engines(stack: ExitStack, *options: str) -> int:
    """A stand-in engine; its port."""
    command = [sys.executable, str(HERE / "upstream.py"), "--ports", "1", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    stack.callback(proxies.stop, process)
    assert process.stdout is not None
    return int(json.loads(process.stdout.readline())["ports"][0])


def run(args: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    behind = engines(stack), engines(stack, "--opaque")
    ports = {name: proxies.free_port() for name in NAMES}
    conf = configuration(ports, not args.metrics)
    conf = conf.replace("@EXPRESS@", "off" if args.starlette else "on")
    site = proxies.Site(folder, ports["on"], behind, kvgate_conf=conf)
    proxies.COMMANDS["kvgate_uncounted"] = counted_instructions if args.instructions else gateway
    if args.instructions:
        proxies.START_S = paired.VALGRIND_S
    cores = os.sched_getaffinity(0)
    running = proxies.start("kvgate_uncounted", site, cores)
    stack.callback(running.stop)
    measured = uvloop.run(measure(args, ports, running.pids(), folder))
    return summary(measured, paired.Instructions.unit if args.instructions else paired.Cpu.unit)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    jsonline.option(parser)
    add("--turns", type=int, help="60; 2 with --instructions")
    add("--requests", type=int, help="of a slice: 320; with --chunks or --instructions 96")
    add("--warm", type=int, help="requests to each server before: as in two slices")
    add("--chunks", type=int, default=0, help="of each stream; 0 = answers that are no streams")
    add("--connections", type=int, default=32)
    add("--metrics", action="store_true", help="metrics alone: nobody writes a log")
    add("--starlette", action="store_true", help="the other lane: `express off`")
    add("--instructions", action="store_true", help="count them, under valgrind")
    args = parser.parse_args()
    args.turns = args.turns or (2 if args.instructions else 60)
    args.requests = args.requests or (96 if args.instructions or args.chunks else 320)
    args.warm = args.warm or 2 * args.requests
    return args


if __name__ == "__main__":
    sys.exit(paired.measured("counting", options(), run, table))
