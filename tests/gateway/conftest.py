"""In-process gateways and engines: real sockets, the test's own event loop, no processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import uvloop

from gateway import app as wiring
from gateway.conf import load_text
from native import relay

Answer = Callable[[bytes, bytes, bytes], tuple[int, dict[str, str], bytes]]


@dataclass
class Asked:
    """One request as an engine saw it."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes


def echo(method: bytes, target: bytes, body: bytes) -> tuple[int, dict[str, str], bytes]:
    return 200, {"content-type": "application/json"}, b'{"id":"cmpl-1","object":"x"}'


@dataclass
class Engine:
    """Answers with `answer(method, target, body)` and keeps what it was asked."""

    answer: Answer = echo
    asked: list[Asked] = field(default_factory=list)
    server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        assert self.server is not None
        return f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
                method, target, _ = head[0].split()
                pairs = [line.partition(b": ") for line in head[1:-2]]
                headers = {name.lower(): value for name, _, value in pairs}
                body = await reader.readexactly(int(headers.get(b"content-length", 0)))
                self.asked.append(Asked(method, target, headers, body))
                status, extra, content = self.answer(method, target, body)
                lines = [f"HTTP/1.1 {status} X", *(f"{n}: {v}" for n, v in extra.items())]
                lines.append(f"content-length: {len(content)}")
                writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def clients(self) -> list[Asked]:
        """What clients asked, without the gateway's own requests."""
        return [a for a in self.asked if a.headers.get(b"user-agent") != b"kvgate"]


@pytest.fixture(scope="session")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The relay's connections are buffered protocols as uvloop knows them."""
    return uvloop.EventLoopPolicy()


@pytest.fixture
async def engine() -> AsyncIterator[Callable[..., Awaitable[Engine]]]:
    """`await engine(answer)` starts one."""
    started: list[Engine] = []

    async def start(answer: Answer = echo) -> Engine:
        made = Engine(answer)
        made.server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
        started.append(made)
        return made

    yield start
    for made in started:
        assert made.server is not None
        made.server.close()


@dataclass
class Running:
    app: wiring.App
    folder: Path
    urls: list[str]
    client: httpx.AsyncClient
    memory: httpx.AsyncClient  # through another ASGI server: no socket of ours

    def lines(self) -> list[dict[str, str]]:
        """The access log so far."""
        for sink in self.app.writer.sinks.values():
            sink.flush()
        self.app.writer.close()
        return [json.loads(line) for line in (self.folder / "access.log").read_text().splitlines()]


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Callable[[str], Awaitable[Running]]]:
    """`await gateway(http_block_text)` serves a configuration; `{log}` is an access log in JSON."""
    running: list[tuple[Running, list[asyncio.AbstractServer]]] = []

    async def start(text: str) -> Running:
        form = (
            "log_format t escape=json '"
            + json.dumps(
                {n: f"${n}" for n in ("status", "lane", "termination", "error_code", "model")}
            )
            + f"'; access_log {tmp_path}/access.log t;"
        )
        app = wiring.build(load_text("http { " + form + text + " }", f"{tmp_path}/kvgate.conf"))
        loop = asyncio.get_running_loop()
        servers, urls = [], []
        for listener in app.listeners:
            sock = listener.bind()
            factory = relay.serve_protocol(app.pipeline, app.asgi, listener)
            servers.append(await loop.create_server(factory, sock=sock))
            urls.append("" if listener.unix_path else f"http://127.0.0.1:{sock.getsockname()[1]}")
        await app.start()
        memory = httpx.AsyncClient(
            transport=httpx.ASGITransport(app.asgi), base_url="http://gateway", trust_env=False
        )
        client = httpx.AsyncClient(base_url=urls[0], trust_env=False)
        running.append((Running(app, tmp_path, urls, client, memory), servers))
        return running[-1][0]

    yield start
    for one, servers in running:
        for server in servers:
            server.close()
        await one.client.aclose()
        await one.memory.aclose()
        await one.app.stop()
