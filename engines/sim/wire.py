"""Requests and replies of the simulated engine on the wire.

A reply's bytes and headers are those of uvicorn under vLLM. Chunks are written straight to the
transport from the engine's step, with no task per token, and a reply can be cut, reset or silenced
at any byte: `Tap` is the place for that.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Protocol

import orjson

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


class Link(Protocol):
    """The connection a reply goes out on."""

    transport: asyncio.Transport
    clock: Clock

    def write(self, data: bytes) -> None: ...
    def reply_done(self) -> None: ...


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

    def __init__(self, conn: Link, request: Request) -> None:
        self.conn, self.request = conn, request
        self.started = self.ended = self.gone = self.chunked = False
        self.chunks = 0
        self.on_gone: Callable[[], None] | None = None
        self.tap: Tap | None = None
        self.delay_s = 0.0  # how long a scripted fault keeps the request from the engine

    def _head(self, status: int, headers: Iterable[tuple[str, str]], length: int | None) -> bytes:
        lines = [b"HTTP/1.1 %d %s\r\n" % (status, _REASONS.get(status, b"")),
                 self.conn.clock.line(), b"server: uvicorn\r\n"]
        if length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        lines += [f"{k}: {v}\r\n".encode("latin-1") for k, v in headers]
        lines.append(b"vary: Origin\r\n")
        if length is None and self.request.version == "1.0":
            self.request.keep_alive = False
        elif length is None:
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
