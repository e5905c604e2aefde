"""The relay's part: replies that are kept, requests that would be late, connections that linger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from harness import kv

from native import relay

BODY = b'{"object":"x","usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":3}},' + (
    b'"kv_transfer_params":{"remote_block_ids":[[' + b",".join(b"%d" % n for n in range(4000))
) + b"]]}}"  # fmt: skip
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
PLAIN = HEAD + b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
UNTIL_CLOSE = HEAD + b"connection: close\r\n\r\n" + BODY


class Rig:
    """A relay between one client and one engine; `change(leg)` before a leg starts."""

    def __init__(self) -> None:
        self.change: Any = lambda leg: None
        self.legs: list[relay.Leg] = []
        self.done = asyncio.Event()
        self.got = b""
        self.closed_at = 0.0
        self.answer = b""
        self.abandoned_ = False

    def head(self, client: relay.Client, request: relay.Request) -> int:
        return 0

    def request(self, client: relay.Client, request: relay.Request) -> None:
        plan = relay.RequestPlan(), relay.ReplyPlan()
        leg = relay.Leg(client, request, self.pool, *plan, self)
        self.change(leg)
        self.legs.append(leg)
        leg.start()
        self.client, self.asked = client, request

    def refuse(self, *_: Any) -> None:
        raise AssertionError

    def abandoned(self, client: relay.Client, request: relay.Request) -> None:
        self.abandoned_ = True

    def leg_head(self, leg: relay.Leg) -> bool:
        return True

    def leg_first(self, leg: relay.Leg) -> None: ...

    def leg_done(self, leg: relay.Leg) -> None:
        self.done.set()

    async def engine(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.got += data
                if self.answer:
                    writer.write(self.answer)
                    if b"connection: close" in self.answer:
                        break
        except ConnectionError:
            pass
        self.closed_at = monotonic()
        writer.close()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.upstream = await asyncio.start_server(self.engine, "127.0.0.1", 0)
        port = self.upstream.sockets[0].getsockname()[1]
        self.pool = relay.Pool(host="127.0.0.1", port=port)
        listener = SimpleNamespace(limits=relay.Limits(), server_ctx=None)
        factory = relay.serve_protocol(self, None, listener)
        self.front = await loop.create_server(factory, "127.0.0.1", 0)
        where = self.front.sockets[0].getsockname()[1]
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", where)
        self.writer.write(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")

    async def ended(self) -> relay.Leg:
        await asyncio.wait_for(self.done.wait(), 5)
        return self.legs[-1]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.writer.close()
    made.front.close()
    made.upstream.close()


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED, UNTIL_CLOSE])
async def test_a_kept_reply_is_its_owners(rig: Rig, answer: bytes) -> None:
    rig.answer = answer
    rig.change = lambda leg: setattr(leg, "keep_max", 1 << 20)
    await rig.start()
    leg = await rig.ended()
    assert (leg.error, leg.status, leg.relayed, leg.reply) == (None, 200, False, BODY)
    assert (leg.prompt_tokens, leg.cached_tokens) == (7, 3)  # however much comes behind
    assert leg.bytes_to_client == 0
    rig.client.reply(rig.asked, 204, (), b"")  # the client has had nothing, and still waits
    assert (await rig.reader.readline()).startswith(b"HTTP/1.1 204")


async def test_a_kept_reply_is_bounded(rig: Rig) -> None:
    rig.answer = PLAIN
    rig.change = lambda leg: setattr(leg, "keep_max", 1000)
    await rig.start()
    leg = await rig.ended()
    assert leg.error == "bad_reply" and leg.reply is None and not leg.relayed


async def test_what_would_be_late_is_not_sent(rig: Rig) -> None:
    rig.change = lambda leg: setattr(leg, "not_after", monotonic() - 1)
    await rig.start()
    leg = await rig.ended()
    assert (leg.error, leg.unsent, leg.bytes_sent) == ("expired", True, 0)
    await kv.until(lambda: rig.closed_at, "the connection's end")
    assert rig.got == b""


async def test_a_connection_lingers_where_the_engine_has_not_begun(rig: Rig) -> None:
    rig.change = lambda leg: setattr(leg, "linger_s", 0.3)
    await rig.start()
    await kv.until(lambda: b"{}" in rig.got, "the request at the engine")
    rig.writer.transport.abort()
    leg = await rig.ended()
    left = monotonic()
    assert leg.error == "client_gone" and rig.pool.active == 0
    await kv.until(lambda: rig.closed_at, "the connection's end")
    assert 0.25 <= rig.closed_at - left < 2.0


async def test_a_parked_reply_is_left_with_the_engine(rig: Rig) -> None:
    rig.answer = PLAIN
    rig.change = lambda leg: leg.park(True)
    await rig.start()
    await kv.until(lambda: b"{}" in rig.got, "the request at the engine")
    first, plan = rig.legs[0], (relay.RequestPlan(), relay.ReplyPlan())
    other = relay.Leg(relay.Nobody(), rig.asked, rig.pool, *plan, rig)
    other.keep_max, other.body = 1 << 20, b"{}"
    other.start()  # what is written later has been answered and read
    await asyncio.wait_for(rig.done.wait(), 5)
    assert other.reply == BODY
    assert not first.t_head and not first.t_end and first.bytes_received == 0
    rig.done.clear()
    first.park(False)
    assert (await rig.ended()).error is None
    assert first.relayed and (await rig.reader.readline()).startswith(b"HTTP/1.1 200")


async def test_nobody_takes_a_leg(rig: Rig) -> None:
    rig.answer = PLAIN
    await rig.start()
    await rig.ended()
    rig.done.clear()
    plan = relay.RequestPlan(), relay.ReplyPlan()
    leg = relay.Leg(relay.Nobody(), rig.asked, rig.pool, *plan, rig)
    leg.keep_max, leg.body = 1 << 20, b"{}"
    leg.start()
    await asyncio.wait_for(rig.done.wait(), 5)
    assert leg.reply == BODY
