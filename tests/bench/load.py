"""The load generator: one scenario per run, one JSON line of results.

`python load.py small|streams|idle --to PORT[,PORT] --pids P[,P]`. CPU time of the processes named
in `--pids` (the proxy's) is read at both ends of a window in which the load is steady: nothing of
start-up, connecting or draining is in it. Exit status 0 even when replies were wrong: see `errors`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from time import monotonic
from typing import Any

import proc
import uvloop
import wire
from client import Connection
from offer import GRACE_S, Load, keep_asking, pace

RAMP_S = 0.001  # between the starts of two streams


class Window:
    """CPU of proxy and load generator, and counts, between `begin` and `end`."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.begin()

    def begin(self) -> None:
        tally = self.load.tally
        self.marks = (monotonic(), proc.cpu_ns(self.load.pids), tally.chunks, tally.replies)
        self.own = proc.cpu_ns([os.getpid()])

    def end(self) -> dict[str, float]:
        t0, cpu0, chunks0, replies0 = self.marks
        seconds = monotonic() - t0
        cpu_us = (proc.cpu_ns(self.load.pids) - cpu0) / 1000
        return {
            "seconds": round(seconds, 3),
            "cpu_us": cpu_us,
            "cpu_share": round(cpu_us / seconds / 1e6, 4),
            "load_cpu_share": round((proc.cpu_ns([os.getpid()]) - self.own) / seconds / 1e9, 4),
            "chunks": self.load.tally.chunks - chunks0,
            "replies": self.load.tally.replies - replies0,
        }


def quantiles(values: list[float]) -> dict[str, float]:
    """p50, p99 and max in ms of values in s."""
    if not values:
        return {"p50": 0.0, "p99": 0.0, "max": 0.0, "count": 0}
    ranked = sorted(values)
    picked = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    at = {name: ranked[min(len(ranked) - 1, int(q * len(ranked)))] for name, q in picked.items()}
    return {name: round(value * 1000, 4) for name, value in at.items()} | {"count": len(ranked)}


async def small(load: Load, args: argparse.Namespace) -> dict[str, Any]:
    """Small non-streaming requests on kept-alive connections."""
    load.free.extend(await load.open(args.connections))
    latencies: list[float] = []

    def done(connection: Connection) -> None:
        if connection.ok:
            latencies.append(connection.t_done - connection.t_sent)
        load.give_back(connection)

    def ask() -> wire.Ask:
        return load.ask(False, 20, 0) if args.prompts < 0 else load.ask_prompt(args.prompts)

    async def offer(seconds: float) -> None:
        if args.rate:
            await pace(load, args.rate, seconds, ask, done)
        else:
            await keep_asking(load, seconds, ask, done)

    await offer(args.warm)
    latencies.clear()
    load.lags.clear()
    window = Window(load)
    await offer(args.seconds)
    figures = window.end()
    await load.drain(GRACE_S)
    return {
        "window": figures,
        "us_each": round(figures["cpu_us"] / max(1, figures["replies"]), 2),
        "latency_ms": quantiles(latencies),
    }


async def streams(load: Load, args: argparse.Namespace) -> dict[str, Any]:
    """`--streams` SSE streams: a window in which only chunks pass, then one with TTFT probes
    beside them.
    """
    probing = args.probe_seconds if args.probes else 0.0
    opened = await load.open(args.streams)
    ramp = args.streams * RAMP_S  # planned; a busy machine may take longer, so streams outlast it
    total = 2 * ramp + args.warm + args.seconds + probing + 2.0
    chunks = int(total * 1000 / args.interval)
    began = monotonic()
    for started, connection in enumerate(opened):
        await load.wait(began + started * RAMP_S)
        load.busy += 1
        connection.ask(load.ask(True, chunks, args.interval), load.give_back)
    await asyncio.sleep(args.warm)
    load.tally.gap = 0.0
    window = Window(load)
    await load.wait(monotonic() + args.seconds)
    figures = window.end()
    gap = load.tally.gap
    held = load.busy
    found: dict[str, Any] = {
        "window": figures,
        "us_each": round(figures["cpu_us"] / max(1, figures["chunks"]), 2),
        "streams_held": held,
        "gap_ms": round(gap * 1000, 2),
    }
    if probing:
        found["ttft_ms"] = await probe(load, args)
    await load.drain(total + GRACE_S)
    return found


async def probe(load: Load, args: argparse.Namespace) -> dict[str, float]:
    """TTFT of short streams, `--probes` a second, on kept-alive connections."""
    load.free.extend(await load.open(args.connections))
    firsts: list[float] = []

    def done(connection: Connection) -> None:
        if connection.ok:
            firsts.append(connection.t_first - connection.t_sent)
        load.give_back(connection)

    def ask() -> wire.Ask:
        return load.ask(True, 3, 20)

    await pace(load, args.probes, 0.5, ask, done)
    firsts.clear()
    load.lags.clear()
    await pace(load, args.probes, args.probe_seconds, ask, done)
    return quantiles(firsts)


async def idle(load: Load, args: argparse.Namespace) -> dict[str, Any]:
    """Memory of the proxy with `--streams` streams that have sent their first token and nothing
    since.
    """
    for connection in await load.open(8):  # what a first request allocates is not a stream's
        load.free.append(connection)
    await pace(load, 200, args.warm, lambda: load.ask(True, 3, 20), load.give_back)
    await load.drain(GRACE_S)
    base = proc.memory_kib(load.pids)
    first = load.tally.chunks
    opened = await load.open(args.streams)
    for connection in opened:
        connection.ask(load.ask(True, 2, 9_999), lambda _: None)
        await asyncio.sleep(0.001)
    deadline = monotonic() + GRACE_S
    while load.tally.chunks - first < args.streams and monotonic() < deadline:
        await asyncio.sleep(0.02)
    for _ in range(args.streams - (load.tally.chunks - first)):
        load.tally.error("no first token")
    await asyncio.sleep(0.5)
    full = proc.memory_kib(load.pids)
    for connection in opened:
        connection.done = None
        connection.transport.abort()
    each = {kind: round((full[kind] - base[kind]) / args.streams, 2) for kind in base}
    return {"kib_each": each, "base_kib": base, "full_kib": full}


async def run(args: argparse.Namespace) -> dict[str, Any]:
    load = Load(args.to, args.pids)
    found: dict[str, Any] = await {"small": small, "streams": streams, "idle": idle}[args.scenario](
        load, args
    )
    found["errors"] = dict(load.tally.errors)
    found["error_samples"] = load.tally.samples
    found["closed"] = load.tally.closed
    found["replies"] = load.tally.replies
    found["chunks"] = load.tally.chunks
    found["lag_ms"] = quantiles(load.lags)
    return found


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("scenario", choices=("small", "streams", "idle"))
    options.add_argument("--to", type=numbers, required=True, help="ports on 127.0.0.1")
    options.add_argument("--pids", type=numbers, default=[], help="processes whose CPU is counted")
    options.add_argument("--connections", type=int, default=32)
    options.add_argument(
        "--rate", type=float, default=1000.0, help="small requests a second; 0: no pause"
    )
    options.add_argument(
        "--prompts", type=int, default=-1, help="small: with prompts of 2 kB from this number on"
    )
    options.add_argument("--streams", type=int, default=200)
    options.add_argument("--interval", type=int, default=20, help="ms between chunks")
    options.add_argument("--probes", type=float, default=0.0, help="TTFT probes per second")
    options.add_argument("--warm", type=float, default=1.0, help="s before the window")
    options.add_argument("--seconds", type=float, default=4.0, help="s of the window")
    options.add_argument("--probe-seconds", type=float, default=4.0)
    args = options.parse_args()
    proc.raise_file_limit()
    print(json.dumps(uvloop.run(run(args))), flush=True)


if __name__ == "__main__":
    main()
