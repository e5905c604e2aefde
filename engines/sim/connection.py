"""HTTP/1.1 server side of the simulated engine: one asyncio protocol over httptools.

As uvicorn does under vLLM: 5 s keep-alive, one reply at a time per connection, pipelined requests
wait, a half-closed client counts as gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

import httptools

from .wire import Clock, Handler, Reply, Request

BODY_BYTES_MAX = 256 << 20
HEAD_BYTES_MAX = 1 << 20
WRITE_BUFFER_BYTES_MAX = 64 << 20
PIPELINE_MAX = 64


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
        self.clock = site.clock
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
