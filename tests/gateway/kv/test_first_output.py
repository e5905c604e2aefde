"""A leg tells its owner of the first output, once, and only where it was asked to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace

import pytest

from native import relay

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
END = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Gate:
    """Passes every request to one engine, and writes down what the leg says."""

    def __init__(self, pool: relay.Pool, wanted: bool) -> None:
        self.pool, self.wanted = pool, wanted
        self.heard: list[str] = []
        self.chunks_at_first = -1
        self.over = asyncio.Event()

    def head(self, client: relay.Client, request: relay.Request) -> int:
        return 0

    def request(self, client: relay.Client, request: relay.Request) -> None:
        leg = relay.Leg(
            client, request, self.pool, relay.RequestPlan(), relay.ReplyPlan(), self
        )
        leg.hear_first = self.wanted
        leg.start()

    def abandoned(self, client: relay.Client, request: relay.Request) -> None:
        self.heard.append("abandoned")

    def leg_head(self, leg: relay.Leg) -> bool:
        return True

    def leg_first(self, leg: relay.Leg) -> None:
        self.heard.append("first")
        self.chunks_at_first = leg.chunks

    def leg_done(self, leg: relay.Leg) -> None:
        self.heard.append("done")
        self.over.set()


class Engine:
    """Writes `parts`, one after another."""

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in self.parts:
            writer.write(part)
            await writer.drain()
        writer.close()


@pytest.fixture
async def ask() -> AsyncIterator[Callable[..., Awaitable[Gate]]]:
    """`await ask(parts, wanted)`: the gate after one request to an engine that says `parts`."""
    closing: list[asyncio.Server] = []

    async def run(parts: list[bytes], wanted: bool) -> Gate:
        loop = asyncio.get_running_loop()
        engine = Engine(parts)
        upstream = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
        port = upstream.sockets[0].getsockname()[1]
        gate = Gate(relay.Pool(host="127.0.0.1", port=port), wanted)
        listener = SimpleNamespace(limits=relay.Limits(), ssl_context=None)
        front = await loop.create_server(
            relay.serve_protocol(gate, None, listener), "127.0.0.1", 0
        )
        closing.extend((upstream, front))
        reader, writer = await asyncio.open_connection(*front.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
        await asyncio.wait_for(gate.over.wait(), 5)
        return gate

    yield run
    for server in closing:
        server.close()


@pytest.mark.parametrize("joined", [True, False])
async def test_a_stream_tells_of_its_first_event_with_output(ask, joined: bool) -> None:  # type: ignore[no-untyped-def]
    parts = [HEAD, chunk(ROLE), chunk(WORD), chunk(WORD), chunk(END), b"0\r\n\r\n"]
    gate = await ask([b"".join(parts)] if joined else parts, True)
    assert gate.heard == ["first", "done"]
    assert gate.chunks_at_first >= 1


async def test_a_stream_without_output_tells_nothing(ask) -> None:  # type: ignore[no-untyped-def]
    gate = await ask([HEAD, chunk(ROLE), chunk(END), b"0\r\n\r\n"], True)
    assert gate.heard == ["done"]


async def test_any_other_reply_tells_of_its_first_byte(ask) -> None:  # type: ignore[no-untyped-def]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\n"
    assert (await ask([head, b"{", b"  }"], True)).heard == ["first", "done"]
    assert (await ask([head.replace(b"4", b"0"), b""], True)).heard == ["done"]


async def test_who_did_not_ask_is_not_told(ask) -> None:  # type: ignore[no-untyped-def]
    gate = await ask([HEAD, chunk(WORD), chunk(END), b"0\r\n\r\n"], False)
    assert gate.heard == ["done"]
