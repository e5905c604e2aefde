"""A small HTTP/1.1 client for streams of completions, so cheap that it is not what is measured.

Invariant: a time is taken once for each read of a socket, before it is parsed. `Reply.end` is
called exactly once for each request, whatever happens.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import orjson

from gateway.load.measure import End, has_payload

BUFFER_MAX = 8 << 20  # of one event
IDLE_S = 3.0  # servers close idle connections after 5 s and more
IDLE_MAX = 4096  # connections kept
SAMPLE = 200  # characters of an error's text


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. `base`: what stands before `/v1` in paths."""

    host: str
    port: int
    base: str = ""
    tls: bool = False
    headers: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of(url: str, headers: tuple[tuple[str, str], ...] = ()) -> Target:
        """Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f'"{url}" is not a URL such as http://127.0.0.1:8000')
        tls = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        return Target(parts.hostname, parts.port or (443 if tls else 80), base, tls, headers)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def head(self, path: str) -> bytes:
        """All of a POST's head but the number of its bytes, which is to be put behind it."""
        lines = [f"POST {self.base}{path} HTTP/1.1", f"Host: {self.authority}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += ["Content-Type: application/json", "Content-Length: "]
        return "\r\n".join(lines).encode()


@dataclass(slots=True)
class Reply:
    """What came of one request. Times of the loop's clock, s; -1 = not known. `held_s`: how long a
    cap on concurrency held it back. `cause` of a failure, without what differs each time.
    """

    due_s: float
    sent_s: float = -1.0
    done_s: float = -1.0
    held_s: float = 0.0
    chunks_s: list[float] = field(default_factory=list)
    choice_s: float = -1.0
    end: End = "completed"
    cause: str = ""
    sample: str = ""
    tokens: int = -1
    prompt_tokens: int = -1
    cached_tokens: int = -1


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self.open = False
        self.free_s = 0.0
        self.waiter: asyncio.Future[bool] | None = None

    def ask(self, reply: Reply, sent: bytes) -> asyncio.Future[bool]:
        """Sends; the future is False where the connection was lost before a byte of an answer."""
        self.reply = reply
        self._rest = b""
        self._whole = self._streams = self._heard = False
        self._parser = httptools.HttpResponseParser(self)
        self.waiter = asyncio.get_running_loop().create_future()
        reply.sent_s = monotonic()
        self.transport.write(sent)
        return self.waiter

    def close(self) -> None:
        self.open = False
        self.transport.abort()

    # ---- of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self.waiter is None or self.waiter.done():
            return
        if self._heard:
            self._end("connection lost")
        else:
            self.waiter.set_result(False)

    def data_received(self, data: bytes) -> None:
        self._now = monotonic()
        if self.waiter is None or self.waiter.done():
            self.close()  # nobody asked
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end("unreadable answer", str(error))
            self.close()

    # ---- of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._streams = value.startswith(b"text/event-stream")

    def on_body(self, data: bytes) -> None:
        rest = self._rest + data
        if not self._streams or self._parser.get_status_code() != 200:
            self._rest = rest[:BUFFER_MAX]
            return
        if b"\r" in rest:
            rest = rest.replace(b"\r\n", b"\n")
        *events, self._rest = rest.split(b"\n\n")
        if len(self._rest) > BUFFER_MAX:
            raise ValueError("an event without end")
        for event in events:
            self._event(event)

    def _event(self, event: bytes) -> None:
        if not event.startswith(b"data:"):
            start = event.find(b"\ndata:")  # behind the name of an event
            if start < 0:
                return  # a comment
            event = event[start + 1 :]
        data = event[5:].strip()
        if data == b"[DONE]":
            self._whole = True
            return
        found = orjson.loads(data)
        if found.get("error"):
            self._fail("error in the stream", str(found["error"]))
            return
        reply = self.reply
        if found.get("choices"):
            if reply.choice_s < 0:
                reply.choice_s = self._now
            if has_payload(found):
                reply.chunks_s.append(self._now)
        if found.get("usage"):
            self._usage(found["usage"])

    def _usage(self, usage: dict[str, Any]) -> None:
        reply = self.reply
        reply.tokens = usage.get("completion_tokens", -1)
        reply.prompt_tokens = usage.get("prompt_tokens", -1)
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens")
        reply.cached_tokens = -1 if cached is None else cached

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._fail(f"status {status}", self._rest.decode("utf-8", "replace"))
        elif not self._streams:
            self._fail("not a stream", self._rest.decode("utf-8", "replace"))
        elif not self._whole:
            self._fail("stream without its end")
        keep = self._parser.should_keep_alive()
        self._end()
        if not keep:
            self.close()

    def _fail(self, cause: str, sample: str = "") -> None:
        reply = self.reply
        if not reply.cause:
            reply.end, reply.cause, reply.sample = "failed", cause, sample[:SAMPLE]

    def _end(self, cause: str = "", sample: str = "") -> None:
        if cause:
            self._fail(cause, sample)
        if self.waiter is not None and not self.waiter.done():
            self.reply.done_s = self._now
            self.waiter.set_result(True)


class Pool:
    """Connections to one target, kept alive, the one that was used last first."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: list[Connection] = []
        self._tls = ssl.create_default_context() if target.tls else None
        self._addresses: list[str] = []  # the one that answered last first

    async def resolve(self) -> None:
        """Looks the name up, once for the run. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            self._target.host, self._target.port, type=socket.SOCK_STREAM
        )
        self._addresses = list(dict.fromkeys(str(one[4][0]) for one in found))

    async def send(self, reply: Reply, sent: bytes) -> None:
        """One request and its answer. A connection that the server closed as it was to be used
        again is replaced once."""
        connection = self._used()
        try:
            if connection is None or not (answered := await connection.ask(reply, sent)):
                connection = await self._fresh()
                answered = await connection.ask(reply, sent)
        except OSError as error:
            reply.end, reply.cause, reply.sample = "failed", "cannot connect", str(error)[:SAMPLE]
            return
        except asyncio.CancelledError:
            if connection is not None:
                connection.close()
            raise
        if not answered:
            reply.end, reply.cause = "failed", "closed without an answer"
        elif connection.open and len(self._idle) < IDLE_MAX:
            connection.free_s = monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    def _used(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open and monotonic() - connection.free_s < IDLE_S:
                return connection
            connection.close()
        return None

    async def _fresh(self) -> Connection:
        """Raises OSError where no address of the name answers."""
        loop = asyncio.get_running_loop()
        name = self._target.host if self._tls else None
        last = OSError("the name has no address")
        for address in self._addresses:
            try:
                _, connection = await loop.create_connection(
                    Connection, address, self._target.port, ssl=self._tls, server_hostname=name
                )
            except OSError as error:
                last = error
                continue
            if address != self._addresses[0]:
                self._addresses = [address, *(a for a in self._addresses if a != address)]
            return connection
        raise last

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
