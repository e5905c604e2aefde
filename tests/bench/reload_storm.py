"""Reloads and a change of the program under load: every reply must come, whole and right.

`python tests/bench/reload_storm.py [--reloads 100] [--streams 200] [--rate 200]` starts three
stand-in engines and a gateway with two workers, keeps `--streams` SSE streams and `--rate` small
requests a second going, reloads with engines added, removed and reweighted, half-way hands over to
a new program (USR2, then QUIT to the old master), and prints one JSON line. Exit status 0 only if
nothing failed and every reload was taken. `--kill N` also kills a worker N times: then only streams
and requests on its connections may fail, which are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

import uvloop
from client import Connection
from offer import Load

ROOT = Path(__file__).resolve().parents[2]
STREAM_MS = 50  # between two chunks
WAIT_S = 20.0
CONF = """
worker_processes 2; pid {folder}/kvgate.pid; error_log {folder}/error.log notice;
worker_shutdown_timeout 60s;
http {{
    access_log {folder}/access.log;
    upstream bench {{ {servers} keepalive 256; health_check interval=1s; }}
    server {{ listen 127.0.0.1:{port}; keepalive_requests 0; {extra}
        location / {{ proxy_pass http://bench; proxy_read_timeout 600s; }} }}
    server {{ listen unix:{folder}/admin.sock; location / {{ admin; }} }}
}}
"""


class Gateway:
    """The gateway under test. Its master changes with USR2."""

    def __init__(self, folder: Path, engines: list[int]) -> None:
        self.folder = folder
        self.engines = engines
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.file = folder / "kvgate.conf"
        self.turn = 0
        self.write()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "-c", str(self.file)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        self.master = self.process.pid

    def write(self) -> None:
        """Another configuration each time: all engines but one in turn, other weights."""
        self.turn += 1
        out = self.turn % (len(self.engines) + 1)
        servers = "".join(
            f"server 127.0.0.1:{port} weight={1 + (self.turn + at) % 3};"
            for at, port in enumerate(self.engines)
            if at != out
        )
        extra = f"listen 127.0.0.2:{self.port};" if self.turn % 5 == 0 else ""
        self.file.write_text(
            CONF.format(folder=self.folder, servers=servers, port=self.port, extra=extra)
        )

    async def status(self) -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(f"{self.folder}/admin.sock")
        writer.write(b"GET /kvgate/status HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        try:
            text = await asyncio.wait_for(reader.read(), 5)
        finally:
            writer.close()
        found: dict[str, Any] = json.loads(text.partition(b"\r\n\r\n")[2])
        return found

    async def until(self, what: str, check: Any) -> dict[str, Any]:
        deadline = monotonic() + WAIT_S
        while monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError, TimeoutError):
                status = await self.status()
                if status["master"] == self.master and check(status):
                    return status
            await asyncio.sleep(0.02)
        raise SystemExit(f"not within {WAIT_S:g} s: {what}")

    async def ready(self) -> None:
        await self.until("ready, with two workers", lambda s: s["ready"] and _serving(s) == 2)

    async def reload(self) -> None:
        before = (await self.until("status", lambda s: True))["generation"]
        self.write()
        os.kill(self.master, signal.SIGHUP)
        await self.until("a reload", lambda s: s["generation"] > before)

    async def hand_over(self) -> None:
        """USR2, and QUIT to the old master once the new one serves."""
        old = self.master
        os.kill(old, signal.SIGUSR2)
        deadline = monotonic() + WAIT_S
        while self.master == old:
            with contextlib.suppress(OSError, ValueError):
                self.master = int((self.folder / "kvgate.pid").read_text())
            if monotonic() > deadline:
                raise SystemExit("the new program did not start")
            await asyncio.sleep(0.02)
        await self.ready()
        os.kill(old, signal.SIGQUIT)

    async def kill_one(self) -> None:
        status = await self.until("two workers", lambda s: _serving(s) == 2)
        workers = [p["pid"] for p in status["processes"] if p["kind"] == "worker"]
        os.kill(random.choice(workers), signal.SIGKILL)

    def stop(self) -> None:
        for pid in {self.master, self.process.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _serving(status: dict[str, Any]) -> int:
    kinds = [(p["kind"], p["state"]) for p in status["processes"]]
    return kinds.count(("worker", "serving"))


class Storm:
    def __init__(self, gateway: Gateway, args: argparse.Namespace) -> None:
        self.gateway = gateway
        self.args = args
        self.streams = Load([gateway.port], [])
        self.small = Load([gateway.port], [])
        self.over = False
        self.closed_idle = 0

    async def run(self) -> dict[str, Any]:
        self.streams.free.extend(await self.streams.open(self.args.streams))
        self.small.free.extend(await self.small.open(32))
        streaming = asyncio.create_task(self._stream())
        asking = asyncio.create_task(self._ask())
        began = monotonic()
        reloads = await self._reload()
        seconds = monotonic() - began
        self.over = True
        await asyncio.gather(streaming, asking)
        await self.streams.drain(30)
        await self.small.drain(10)
        status = await self.gateway.until("nothing in flight", _quiet)
        return {
            "reloads": reloads,
            "seconds": round(seconds, 2),
            "generation": status["generation"],
            "streams": {"done": self.streams.tally.replies, "errors": self.streams.tally.errors,
                        "samples": self.streams.tally.samples},
            "small": {"done": self.small.tally.replies, "errors": self.small.tally.errors,
                      "samples": self.small.tally.samples},
            "chunks": self.streams.tally.chunks,
            "gap_ms": round(self.streams.tally.gap * 1000),
            "closed_idle": self.closed_idle,
            "told_to_close": self.streams.tally.closed + self.small.tally.closed,
        }  # fmt: skip

    async def _stream(self) -> None:
        """Every connection begins another stream when one has ended."""
        while not self.over:
            while (connection := self._take(self.streams)) is not None:
                chunks = random.randint(20, 80)
                ask = self.streams.ask(True, chunks, STREAM_MS)
                connection.ask(ask, self.streams.give_back)
            await asyncio.sleep(0.01)

    async def _ask(self) -> None:
        began, sent = monotonic(), 0
        while not self.over:
            while sent < (monotonic() - began) * self.args.rate:
                connection = self._take(self.small)
                if connection is None:
                    break
                sent += 1
                connection.ask(self.small.ask(False, 20, 0), self.small.give_back)
            await asyncio.sleep(0.001)

    def _take(self, load: Load) -> Connection | None:
        """A connection to ask on. One that was closed while it was idle is replaced, as every HTTP
        client does.
        """
        while load.free:
            connection = load.free.popleft()
            load.busy += 1
            if connection.open:
                return connection
            self.closed_idle += 1
            load.give_back(connection)
        return None

    async def _reload(self) -> int:
        args = self.args
        kills = set(range(args.reloads // 4, args.reloads, max(1, args.reloads // 4))[: args.kill])
        for turn in range(args.reloads):
            if turn == args.reloads // 2 and not args.kill:
                await self.gateway.hand_over()
            if turn in kills:
                await self.gateway.kill_one()
            await self.gateway.reload()
            await asyncio.sleep(args.pause)
        return int(args.reloads)


def _quiet(status: dict[str, Any]) -> bool:
    rows = [e for u in status["upstreams"].values() for e in u["engines"]]
    return not any(row["in_flight"] for row in rows)


async def storm(args: argparse.Namespace) -> int:
    engines = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("upstream.py")), "--ports", "3"],
        stdout=subprocess.PIPE,
    )
    assert engines.stdout is not None
    ports = json.loads(engines.stdout.readline())["ports"]
    with tempfile.TemporaryDirectory(prefix="kvgate-storm-") as name:
        gateway = Gateway(Path(name), ports)
        try:
            await gateway.ready()
            found = await Storm(gateway, args).run()
        finally:
            gateway.stop()
            engines.kill()
            if args.log:
                print((Path(name) / "error.log").read_text()[-args.log :], file=sys.stderr)
    print(json.dumps(found))
    failed = sum(found[kind]["errors"].total() for kind in ("streams", "small"))
    return 1 if failed and not args.kill else 0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--reloads", type=int, default=100)
    options.add_argument("--streams", type=int, default=200)
    options.add_argument("--rate", type=float, default=200)
    options.add_argument("--pause", type=float, default=0.1, help="s between two reloads")
    options.add_argument("--kill", type=int, default=0, help="workers to kill; then without USR2")
    options.add_argument("--log", type=int, default=0, help="characters of the error log to show")
    args = options.parse_args()
    sys.exit(uvloop.run(storm(args)))


if __name__ == "__main__":
    main()
