"""Fuzzes the request side: heads, lengths, chunk framing, pipelining, any cut of the bytes.

Oracles: (1) what the client is sent is a sequence of whole replies, one per request, and the end
follows a refusal; (2) cuts change nothing; (3) httptools (llhttp, strict) accepts every request
that the relay accepts, and reads the same method, target, headers and body: EXCEPTIONS below.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import httptools
from fuzz.campaign import Target, main
from fuzz.mutation import pieces
from fuzz.reading import replies
from fuzz.transports import FakeLoop, FakeTransport, feed

from native import relay

BODY_MAX = 20_000
TRAILER_ERRORS = ("eader", "Content-Length", "Transfer-Encoding", "LF", "CR")
BLANKS = re.compile(rb"\r\n[0-9a-fA-F]+[ \t]")


@dataclass
class Listener:
    limits: relay.Limits = field(default_factory=lambda: relay.Limits(header_bytes=8192))
    tag: str = "fuzz"
    server_ctx: object = None


Asked = tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...], bytes]


class Gate:
    """Takes every request, buffers every body, and notes what it was given."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.methods: list[str] = []
        self.refused: list[int] = []

    def head(self, client: relay.Client, request: relay.Request) -> int:
        return BODY_MAX

    def request(self, client: relay.Client, request: relay.Request) -> None:
        headers = tuple(request.headers)
        self.asked.append((request.method, request.target, headers, request.body or b""))
        self.methods.append(request.method.decode())
        client.reply(request, 200, ((b"x-number", b"%d" % len(self.asked)),), b"body")

    def refuse(
        self, client: relay.Client, request: relay.Request, status: int, code: str, message: str
    ) -> None:
        assert 400 <= status < 600 and code and message
        self.refused.append(status)
        # No method where the request line could not be read.
        self.methods.append((request.method or b"-").decode())
        client.reply(request, status, (), message.encode(), close=True)

    def abandoned(self, client: relay.Client, request: relay.Request) -> None:
        pass


async def outcome(parts: Sequence[bytes]) -> tuple[Gate, FakeTransport]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FakeLoop)
    gate, transport = Gate(), FakeTransport()
    client = relay.serve_protocol(gate, None, Listener())()
    transport.protocol = client
    client.connection_made(transport)
    for part in parts:
        if transport.closed:
            break
        feed(transport, part)
    await asyncio.sleep(0)
    assert not loop.faults, loop.faults
    if not transport.closed:
        client.eof_received()
        transport.close()
    await asyncio.sleep(0)
    assert not loop.faults, loop.faults
    return gate, transport


async def check(data: bytes, cuts: Sequence[int]) -> None:
    gate, transport = await outcome(pieces(data, cuts))
    assert len(gate.refused) <= 1 and transport.late == 0
    # An invitation for a body that the input ends before.
    out = bytes(transport.out).removesuffix(b"HTTP/1.1 100 Continue\r\n\r\n")
    found = replies(out, gate.methods)
    assert [reply.status for reply in found] == [200] * len(gate.asked) + gate.refused
    numbers = [reply.header("x-number") for reply in found[: len(gate.asked)]]
    assert numbers == [str(n + 1) for n in range(len(gate.asked))], "replies out of order"
    if gate.refused:
        assert found[-1].header("connection") == "close"
    if cuts:
        whole, _ = await outcome([data])
        same = whole.asked == gate.asked and alike(whole.refused) == alike(gate.refused)
        assert same, f"cuts changed the result: {whole.refused} whole, {gate.refused} in pieces"
    compare(data, gate)


def alike(refused: list[int]) -> list[str]:
    """Which limit a too long head meets first depends on how much of it has been read."""
    return ["head" if status in (400, 414, 431) else str(status) for status in refused]


class Oracle:
    """httptools' reading of the same bytes, request by request."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.parser = httptools.HttpRequestParser(self)
        self.on_message_begin()

    def on_message_begin(self) -> None:
        self.target, self.body = b"", b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:  # what comes behind the body are trailers
            self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.in_head = False

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        method = self.parser.get_method()
        self.asked.append((method, self.target, tuple(self.headers), self.body))


def compare(data: bytes, gate: Gate) -> None:
    """EXCEPTIONS, where the two may differ and each is right by itself:

    - methods: llhttp knows a fixed list, RFC 9110 §9.1 lets any token be one;
    - `Upgrade`, CONNECT: llhttp stops parsing there, the relay refuses or ignores the offer;
    - absolute-form targets: the relay splits them, llhttp hands them through;
    - blanks behind a chunk size (RFC 9112 §7.1.1, BWS): the relay skips them, llhttp refuses;
    - chunk extensions: the relay drops them, any text will do;
    - `Connection: close` in a trailer: llhttp obeys it, the relay skips it as any trailer;
    - trailer lines: the relay skips them whatever they hold, since none is ever passed on;
    - `Connection: close` with more behind it: the relay reads on no further, neither does llhttp.
    """
    if b"upgrade" in data.lower() or b"CONNECT" in data or b"://" in data:
        return
    oracle = Oracle()
    error = ""
    try:
        oracle.parser.feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade) as caught:
        error = repr(caught)
    for number, ours in enumerate(gate.asked):
        if number >= len(oracle.asked):
            if "method" in error.lower():
                return
            if b"\r\n0" in data and any(word in error for word in TRAILER_ERRORS):
                return
            if "chunk ext" in error or ("Data after" in error and b"\r\n0" in data):
                return
            if "chunk size" in error and BLANKS.search(data):
                return
            raise AssertionError(f"accepted what httptools rejects: {ours!r}, {error}")
        theirs = oracle.asked[number]
        assert ours == theirs, f"read differently:\n ours   {ours!r}\n theirs {theirs!r}"


def _seeds() -> list[bytes]:
    from fuzz import requests

    return requests.SEEDS


WORDS = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b" ", b"\t", b":", b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"chunked", b"Host: a\r\n",
    b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Expect: 100-continue\r\n",
    b"HTTP/1.1", b"HTTP/1.0", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n",
    b";ext=1", b"fffffffffffffff", b"10000000000000000", b"\x80", b"\xff", b"%00", b"?", b"#", b"*",
    b"A" * 9000, b"X: y\r\n" * 250, b",", b"-1", b"+1", b"\x0b", b"\x7f",
]  # fmt: skip


def target() -> Target:
    return Target("requests", check, _seeds(), WORDS, FakeLoop)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(target())
