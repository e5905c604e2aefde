#!/usr/bin/env python3
"""What the gateway itself adds between the two legs of a disaggregated request: from the parameters
in a prefill engine's reply to the request that the decode engine gets.

`legs.py --json -` prints one JSON line; a table goes to stderr. `second_leg_p99_ms` is from the
gateway's own histogram, from the reply read to the request written (the bound of the bucket that
holds it), and is held against `limit_ms`. `seen_p99_ms` is the same as the engines see it, with the
way over loopback there and back and the wait for a core: both engines are stand-ins in this
process, on one event loop, so that both moments are read from one clock. Times are wall times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import jsonline

ROOT = Path(__file__).parents[2]
LIMIT_MS = 2.0
START_S = 30.0
CONF = """
worker_processes 1; pid {dir}/pid; error_log {dir}/error.log notice;
http {{
    access_log off;
    upstream pd {{
        server 127.0.0.1:{p} role=prefill max_fails=0;
        server 127.0.0.1:{d} role=decode max_fails=0;
        kv_aware; kv_events off; tokenizer off; disaggregate always pending=0; health_check off;
    }}
    server {{
        listen 127.0.0.1:{port}; keepalive_requests 0; location / {{ proxy_pass http://pd; }}
    }}
    server {{ listen 127.0.0.1:{metrics}; location / {{ metrics; }} }}
}}
"""


def params(request: bytes, blocks: int) -> bytes:
    """As vLLM 0.32 gives them."""
    return json.dumps({
        "do_remote_prefill": True, "do_remote_decode": False,
        "remote_block_ids": [list(range(1000, 1000 + blocks))],
        "remote_engine_id": "4d5c8b0e-engine", "remote_request_id": request.decode(),
        "remote_host": "127.0.0.1", "remote_port": 5600, "tp_size": 1,
        "remote_num_tokens": blocks * 16, "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
    }).encode()  # fmt: skip


@dataclass
class Clock:
    """When a request's parameters went out, and how long the other leg took to come."""

    blocks: int
    sent: dict[bytes, float] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)


class Engine(asyncio.Protocol):
    """Answers at once; `prefill` with parameters."""

    def __init__(self, clock: Clock, prefill: bool) -> None:
        self.clock, self.prefill = clock, prefill
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        self.data += data
        head, blank, rest = self.data.partition(b"\r\n\r\n")
        if not blank:
            return
        lower = head.lower()
        if not lower.startswith(b"post "):  # the gateway wants to know what it does not need here
            self.data = b""
            self.transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        at = lower.index(b"content-length: ") + 16
        length = int(lower[at:].split(b"\r", 1)[0])
        if len(rest) < length:
            return
        self.data = rest[length:]
        at = lower.index(b"x-request-id: ") + 14
        self.answer(lower[at : at + 32], now)

    def answer(self, request: bytes, now: float) -> None:
        usage = b'"usage":{"prompt_tokens":9,"total_tokens":10,"completion_tokens":1}'
        body = b'{"id":"cmpl-1","object":"text_completion","choices":[],' + usage
        if self.prefill:
            body += b',"kv_transfer_params":' + params(request, self.clock.blocks)
        else:
            self.clock.gaps.append(now - self.clock.sent.pop(request))
        body += b"}"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % len(body) + body)
        if self.prefill:
            self.clock.sent[request] = perf_counter()


async def client(port: int, count: int, prompt: str, number: int) -> None:
    """One connection that asks again at once, each time with another prompt."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for n in range(count):
        body = json.dumps({"model": "m", "prompt": f"{number} {n} {prompt}", "max_tokens": 8})
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: b\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        writer.write((head + body).encode())
        reply = await reader.readuntil(b"\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 200"), reply
        at = reply.lower().index(b"content-length: ") + 16
        await reader.readexactly(int(reply[at:].split(b"\r", 1)[0]))
    writer.close()


def free_ports(count: int) -> list[int]:
    socks = [socket.socket() for _ in range(count)]
    for sock in socks:
        sock.bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return ports


async def up(port: int) -> None:
    deadline = perf_counter() + START_S
    while perf_counter() < deadline:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise SystemExit("the gateway did not start")


def quantile(values: list[float], share: float) -> float:
    """In milliseconds."""
    ordered = sorted(values)
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000, 3)


def own_p99(port: int) -> float:
    """Upper bound in ms of the bucket of the gateway's own histogram that holds its p99."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    rows = [line for line in text.splitlines()
            if line.startswith("kvgate_second_leg_delay_seconds_bucket")]  # fmt: skip
    counts = [(row.split('le="')[1].split('"')[0], float(row.rsplit(" ", 1)[1])) for row in rows]
    total = counts[-1][1]
    return next(float(le) * 1000 for le, count in counts if count >= 0.99 * total)


async def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    loop, clock = asyncio.get_running_loop(), Clock(options.blocks)
    servers = [
        await loop.create_server(lambda kind=kind: Engine(clock, kind), "127.0.0.1", 0)
        for kind in (True, False)
    ]
    p, d = (server.sockets[0].getsockname()[1] for server in servers)
    port, metrics = free_ports(2)
    conf = folder / "kvgate.conf"
    conf.write_text(CONF.format(dir=folder, p=p, d=d, port=port, metrics=metrics))
    command = [sys.executable, "-m", "gateway", "-c", str(conf), "-p", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=2, stderr=2)
    rows = []
    try:
        await up(port)
        prompt = "word " * options.words
        await client(port, 50, prompt, -1)
        for connections in (1, 8):
            clock.gaps.clear()
            each = options.requests // connections
            asks = (client(port, each, prompt, connections * 100 + n) for n in range(connections))
            await asyncio.gather(*asks)
            rows.append({"connections": connections, "requests": len(clock.gaps),
                         "p50_ms": quantile(clock.gaps, 0.5),
                         "p99_ms": quantile(clock.gaps, 0.99)})  # fmt: skip
        own = await asyncio.to_thread(own_p99, metrics)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    return {"bench": "legs", "blocks": options.blocks, "rows": rows,
            "second_leg_p99_ms": own, "seen_p99_ms": rows[0]["p99_ms"],
            "limit_ms": LIMIT_MS}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    jsonline.option(parser)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--blocks", type=int, default=256, help="blocks that the parameters name")
    parser.add_argument("--words", type=int, default=800, help="words of a prompt")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        line = asyncio.run(run(options, Path(folder)))
    for row in line["rows"]:
        print(f"{row['connections']:3} connections: p50 {row['p50_ms']:.3f} ms, "
              f"p99 {row['p99_ms']:.3f} ms", file=sys.stderr)  # fmt: skip
    print(f"of the gateway: p99 at most {line['second_leg_p99_ms']:.3g} ms", file=sys.stderr)
    jsonline.write(line, options.json)


if __name__ == "__main__":
    main()
