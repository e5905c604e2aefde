"""HTTP/1.1 server side of the simulated engine: one asyncio protocol over httptools.

It behaves on the wire as uvicorn does under vLLM (its headers, its 5 s keep-alive, one reply at a
time per connection, a half-closed client counts as gone) and adds what a test instrument needs:
chunks are written straight to the transport from the engine's step, with no task per token, and a
reply can be cut, reset or silenced at any byte.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Protocol, cast

import httptools
import orjson

BODY_BYTES_MAX = 256 << 20
HEAD_BYTES_MAX = 1 << 20
WRITE_BUFFER_BYTES_MAX = 64 << 20
PIPELINE_MAX = 64

_REASONS = {s.value: s.phrase.encode() for s in HTTPStatus}
_RST = struct.pack("ii", 1, 0)


class Request:
    """One request with its whole body. Header names are lower case."""

    __slots__ = ("body", "headers", "keep_alive", "method", "path", "query", "target", "version")

    def __init__(self, method: str, target: str, version: str) -> None:
        self.method, self.target, self.version = method, target, version
        self.path, _, self.query = target.partition("?")
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.keep_alive = True

    def get(self, name: str, default: str | None = None) -> str | None:
        for key, value in self.headers:
            if key == name:
                return value
        return default


class Tap(Protocol):
    """A fault on one reply: sees the reply's bytes instead of the transport."""

    def whole(self, reply: Reply, head: bytes, body: bytes) -> None: ...
    def head(self, reply: Reply, data: bytes) -> None: ...
    def chunk(self, reply: Reply, data: bytes) -> None: ...
    def end(self, reply: Reply) -> None: ...


Handler = Callable[[Request, "Reply"], Awaitable[None]]


class Clock:
    """The Date header, formatted once a second."""

    def __init__(self) -> None:
        self._second, self._line = 0, b""

    def line(self) -> bytes:
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._line = b"date: " + formatdate(now, usegmt=True).encode() + b"\r\n"
        return self._line


class Reply:
    """The reply to one request: either `send` (whole) or `stream`, `chunk`..., `end`."""

    __slots__ = ("chunked", "chunks", "conn", "delay_s", "ended", "gone", "on_gone", "request",
                 "started", "tap")

    def __init__(self, conn: Connection, request: Request) -> None:
        self.conn, self.request = conn, request
        self.started = self.ended = self.gone = self.chunked = False
        self.chunks = 0
        self.on_gone: Callable[[], None] | None = None
        self.tap: Tap | None = None
        self.delay_s = 0.0  # how long a scripted fault keeps the request from the engine

    def _head(self, status: int, headers: Iterable[tuple[str, str]], length: int | None) -> bytes:
        lines = [b"HTTP/1.1 %d %s\r\n" % (status, _REASONS.get(status, b"")),
                 self.conn.site.clock.line(), b"server: uvicorn\r\n"]
        lines += [f"{k}: {v}\r\n".encode("latin-1") for k, v in headers]
        if length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        elif self.request.version == "1.0":
            self.request.keep_alive = False
        else:
            self.chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.request.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self.started = True
        return b"".join(lines)

    def send(self, status: int, body: bytes, content_type: str = "application/json",
             headers: Iterable[tuple[str, str]] = ()) -> None:
        """Writes a whole reply; the body is left out for HEAD."""
        if self.gone or self.started:
            return
        fields = [("content-type", content_type), *headers] if content_type else list(headers)
        head = self._head(status, fields, len(body))
        if self.request.method == "HEAD":
            body = b""
        if self.tap is not None:
            self.tap.whole(self, head, body)
        else:
            self.conn.write(head + body)
            self.finish()

    def json(self, status: int, value: Any, headers: Iterable[tuple[str, str]] = ()) -> None:
        self.send(status, orjson.dumps(value), headers=headers)

    def stream(self, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Starts an event stream: the head goes out at once, as vLLM's does."""
        fields = [("content-type", "text/event-stream; charset=utf-8"), *headers]
        head = self._head(200, fields, None)
        if self.tap is not None:
            self.tap.head(self, head)
        elif not self.gone:
            self.conn.write(head)

    def chunk(self, data: bytes) -> None:
        if self.gone or self.ended:
            return
        self.chunks += 1
        if self.tap is not None:
            self.tap.chunk(self, data)
        else:
            self.raw_chunk(data)

    def raw_chunk(self, data: bytes) -> None:
        self.conn.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def end(self) -> None:
        if self.gone or self.ended:
            return
        if self.tap is not None:
            self.tap.end(self)
        else:
            self.raw_end()

    def raw_end(self) -> None:
        if self.chunked:
            self.conn.write(b"0\r\n\r\n")
        self.finish()

    def finish(self) -> None:
        """The last byte of this reply has been written."""
        if not self.ended:
            self.ended = True
            self.conn.reply_done()

    def drop(self, reset: bool) -> None:
        """Breaks the connection: with a FIN after what is buffered, or with an RST at once."""
        self.ended = True
        transport = self.conn.transport
        if reset:
            sock = transport.get_extra_info("socket")
            if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
            transport.abort()
        else:
            transport.close()


class Site:
    """What all connections of one server share."""

    def __init__(self, handler: Handler, keepalive_s: float) -> None:
        self.handler, self.keepalive_s = handler, keepalive_s
        self.clock = Clock()
        self.connections: set[Connection] = set()
        self.accepted = 0
        self.bodies = 0
        self.disconnects = 0

    def protocol(self) -> Connection:
        return Connection(self)


class Connection(asyncio.Protocol):
    """One client connection."""

    transport: asyncio.Transport

    def __init__(self, site: Site) -> None:
        self.site = site
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._target = b""
        self._request: Request | None = None
        self._headers: list[tuple[str, str]] = []
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._queue: deque[Request] = deque()
        self._active: Reply | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    # -- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.site.connections.add(self)
        self.site.accepted += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.site.connections.discard(self)
        self._stop_idle()
        reply = self._active
        if reply is not None and not reply.gone:
            reply.gone = True
            if not reply.ended:
                self.site.disconnects += 1
            if reply.on_gone is not None:
                reply.on_gone()

    def eof_received(self) -> None:
        return None

    def data_received(self, data: bytes) -> None:
        self._stop_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._bad_request()
        except httptools.HttpParserError:
            self._bad_request()

    def write(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(data)
        if self.transport.get_write_buffer_size() > WRITE_BUFFER_BYTES_MAX:
            self.transport.abort()

    def _bad_request(self) -> None:
        if self._active is None:
            body = b"Invalid HTTP request received."
            self.write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
                       b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        self.transport.close()

    # -- parser callbacks

    def on_message_begin(self) -> None:
        self._target, self._headers, self._head_bytes = b"", [], 0
        self._body, self._body_bytes = [], 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            self.transport.abort()
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        method = self._parser.get_method().decode("ascii")
        request = Request(method, self._target.decode("latin-1"), self._parser.get_http_version())
        request.headers = self._headers
        request.keep_alive = self._parser.should_keep_alive()
        self._request = request
        if (request.get("expect") or "").lower() == "100-continue" and self._active is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > BODY_BYTES_MAX:
            self.transport.abort()
        self._body.append(data)

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        if request is None:
            return
        request.body = b"".join(self._body)
        self._body = []
        self.site.bodies += 1
        if self._active is not None:
            self._queue.append(request)
            if len(self._queue) > PIPELINE_MAX:
                self.transport.abort()
        else:
            self._start(request)

    # -- replies

    def _start(self, request: Request) -> None:
        self._active = Reply(self, request)
        self._task = self._loop.create_task(self._run(self._active))

    async def _run(self, reply: Reply) -> None:
        # A plain await: the handler owns error replies; what escapes it is a bug and is reported
        # by the loop's exception handler, while the client sees its connection closed.
        try:
            await self.site.handler(reply.request, reply)
        except BaseException:
            self.transport.abort()
            raise

    def reply_done(self) -> None:
        reply = self._active
        self._active = None
        if reply is None or self.transport.is_closing():
            return
        if not reply.request.keep_alive:
            self.transport.close()
        elif self._queue:
            self._start(self._queue.popleft())
        else:
            self._idle = self._loop.call_later(self.site.keepalive_s, self.transport.close)

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
