"""Fuzzes the reply side: heads, lengths, chunk framing, event streams, edits, any cut of the bytes.

Oracles: (1) the client is always at a framing boundary: what it is sent reads as one reply that
is whole, or was cut on purpose (connection ended inside it); (2) cuts change nothing that a client
sees and nothing that is counted; (3) the payload is what a slow plain decoder reads; a reply that
the decoder calls cut is never whole for the client: error event in a stream, a cut connection
elsewhere; (4) an alias is put back in whole events, nothing else changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fuzz import replies as seeds
from fuzz.campaign import Target, main
from fuzz.mutation import pieces
from fuzz.reading import reader
from fuzz.request_side import Listener
from fuzz.transports import FakeLoop, FakeTransport, feed
from harness.client import request_bytes
from harness.shapes import sse_data
from harness.wire import BODILESS, Malformed, Short, Wire

from native import relay

LOST = b"upstream_lost"


class Gate:
    """Sends every request to the one engine; answers 502 when nothing of a reply was passed on."""

    def __init__(self, edits: relay.Edits | None) -> None:
        self.edits = edits
        self.legs: list[relay.Leg] = []

    def head(self, client: relay.Client, request: relay.Request) -> int:
        return 0

    def request(self, client: relay.Client, request: relay.Request) -> None:
        pool = relay.Pool(unix_path="fuzz")
        self.client, self.asked = client, request
        leg = relay.Leg(client, request, pool, relay.RequestPlan(), relay.ReplyPlan(), self)
        leg.edits = self.edits
        leg.start()

    def refuse(self, client: relay.Client, request: relay.Request, *_: object) -> None:
        raise AssertionError("the request is well-formed")

    def abandoned(self, client: relay.Client, request: relay.Request) -> None:
        pass

    def leg_head(self, leg: relay.Leg) -> bool:
        return True

    def leg_done(self, leg: relay.Leg) -> None:
        self.legs.append(leg)
        if not leg.relayed:
            self.client.reply(self.asked, 502, (), b"lost", close=False)


@dataclass
class Result:
    """What the client saw, and what was counted. `whole`: its reply was complete."""

    status: int = 0
    body: bytes = b""
    whole: bool = False
    lost: bool = False  # ended by our error event
    counts: tuple[object, ...] = field(default=())


async def outcome(parts: Sequence[bytes], edits: relay.Edits | None) -> Result:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FakeLoop)
    loop.opened.clear()
    gate, transport = Gate(edits), FakeTransport()
    client = relay.serve_protocol(gate, None, Listener())()
    transport.protocol = client
    client.connection_made(transport)
    feed(transport, request_bytes(b'{"stream":true}'))
    while not loop.opened and not gate.legs:
        await asyncio.sleep(0)
    [upstream] = loop.opened
    while not upstream.out and not gate.legs:
        await asyncio.sleep(0)
    for part in parts:
        if upstream.closed:
            break
        feed(upstream, part)
    if not upstream.closed:
        upstream.protocol.eof_received()
        upstream.close()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not loop.faults, loop.faults
    assert len(gate.legs) == 1, f"leg_done came {len(gate.legs)} times"
    result = read(bytes(transport.out), transport.closed)
    leg = gate.legs[0]
    error = None if leg.error in ("eof", "reset") else leg.error
    result.counts = (leg.status, leg.relayed, leg.events, leg.chunks, leg.done_seen, error)
    result.counts += (leg.prompt_tokens, leg.completion_tokens, leg.reply_id)
    transport.close()
    await asyncio.sleep(0)
    return result


def read(out: bytes, closed: bool) -> Result:
    wire = reader(out)
    try:
        reply = wire.reply()
    except Short as short:
        assert closed, f"the client waits for ever: {out!r}"
        status = int(short.head.start[1]) if short.head else 0
        return Result(status, short.got, False)
    assert not wire.buffer, f"bytes behind the reply: {bytes(wire.buffer)!r}"
    assert reply.framing != "close" or closed
    lost = LOST in reply.body[-300:] and b"event-stream" in reply.head.raw.lower()
    return Result(reply.status, reply.body, True, lost)


@dataclass
class Plain:
    """The slow decoder's reading: `kind` is whole, cut or bad."""

    kind: str
    status: int = 0
    body: bytes = b""
    sse: bool = False


def plain(data: bytes) -> Plain:
    """Reads one reply with the tests' strict reader. Odd things it cannot judge are `bad`."""
    wire = reader(data)
    try:
        head = wire.head()
        while head.start[1][:1] == b"1" and head.start[1] != b"101":
            head = wire.head()
        status = int(head.start[1])
    except (Short, Malformed, ValueError):
        return Plain("bad")
    if not 200 <= status <= 999 or not head.start[0].startswith(b"HTTP/1."):
        return Plain("bad")
    sse = b"event-stream" in head.raw.lower()
    if status in BODILESS:
        return Plain("whole", status, b"", sse)
    return _body(wire, head.raw.lower(), status, sse)


def _body(wire: Wire, raw: bytes, status: int, sse: bool) -> Plain:
    lengths = raw.count(b"\ncontent-length:")
    codings = raw.count(b"\ntransfer-encoding:")
    if lengths + codings > 1:
        return Plain("bad")
    if codings and b"\ntransfer-encoding: chunked\r" not in raw:
        return Plain("bad")
    if not lengths and not codings:
        while wire.fill():
            pass
        return Plain("whole", status, bytes(wire.buffer), sse)
    from harness.wire import parse_head

    try:
        _, body, _ = wire.body(parse_head(raw))
    except Short as short:
        return Plain("cut", status, short.got, sse)
    except (Malformed, ValueError):
        return Plain("bad")
    return Plain("whole", status, body, sse)


async def check(data: bytes, cuts: Sequence[int]) -> None:
    got = await outcome(pieces(data, cuts), None)
    if cuts:
        uncut = await outcome([data], None)
        assert visible(uncut) == visible(got), f"cuts changed the result\n {uncut}\n {got}"
    judge(plain(data), got)
    edits = relay.Edits(model_to=b"an-alias")
    edited = await outcome(pieces(data, cuts), edits)
    judge_edited(got, edited)


def visible(result: Result) -> tuple[object, ...]:
    """What must not depend on cuts. How much of a cut plain body got out before the end may."""
    body = result.body if result.whole and not result.lost else b""
    return result.status, body, result.whole, result.lost, result.counts[:2]


def judge(want: Plain, got: Result) -> None:
    if want.kind == "whole":
        if got.status == 502 and got.body == b"lost":
            return  # refused for something the plain reader lets pass: never wrong
        assert got.status == want.status and got.whole and not got.lost, (want, got)
        assert got.body == want.body, (want, got)
    elif want.kind == "cut":
        if got.status == 502 and got.body == b"lost":
            return
        assert got.lost or not got.whole, f"a cut reply looks whole: {want} {got}"
        if got.lost:
            assert want.sse, (want, got)
            # What stood in the same read as a framing fault may be missing, nothing else may come.
            ours = got.body[: got.body.rindex(b"data: ")].rstrip(b"\n")
            assert want.body.startswith(ours), (want, got)
            last = sse_data(got.body.replace(b"\xff", b"?").decode("utf-8", "replace").encode())[-1]
            assert json.loads(last)["error"]["code"] == "upstream_lost", last


def judge_edited(raw: Result, edited: Result) -> None:
    """A cut may end otherwise (edited streams are framed anew), but it never looks whole."""
    if not raw.whole or raw.lost:
        if edited.status == 502:
            return  # a plain body is collected first: the cut is known before the head goes out
        assert edited.lost or not edited.whole, (raw, edited)
        return
    assert (raw.status, edited.whole, edited.lost) == (edited.status, True, False), (raw, edited)
    if edited.body == raw.body:
        return
    assert b"an-alias" in edited.body, (raw.body[:300], edited.body[:300])


WORDS = [
    b"\r\n", b"\n", b"\r", b"\n\n", b"\0", b":", b"data: ", b"data:", b"data: [DONE]\n\n",
    b"event: x\n",
    b'{"model":"m1"}', b'"model":"m1"', b'"usage":{"prompt_tokens":5,"completion_tokens":6}',
    b"0\r\n\r\n",
    b"5\r\nhello\r\n", b";x=1", b"content-length: 5\r\n", b"content-length: 0\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"transfer-encoding: chunked\r\n", b"connection: close\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
    b"content-type: text/event-stream\r\n", b"ffffffffffffff", b"\xff", b"\xe6\x97\xa5",
    b": ping\n\n",
    b"HTTP/1.0", b"204", b"304", b"101", b"500", b"x" * 5000, b'\\"', b"\\", b"-1",
]  # fmt: skip


def target() -> Target:
    return Target("replies", check, seeds.SEEDS, WORDS, FakeLoop)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(target())
