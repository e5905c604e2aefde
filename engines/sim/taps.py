"""Faults on the bytes of one reply. Each stands between the reply and its transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .sse import DONE, error_event
from .wire import Reply

RST_GRACE_S = 0.02  # lets what was written before leave the process; an abort would discard it


class PlainTap:
    """Passes everything on; the base of the others."""

    def whole(self, reply: Reply, head: bytes, body: bytes) -> None:
        reply.conn.write(head + body)
        reply.finish()

    def head(self, reply: Reply, data: bytes) -> None:
        reply.conn.write(data)

    def chunk(self, reply: Reply, data: bytes) -> None:
        reply.raw_chunk(data)

    def end(self, reply: Reply) -> None:
        reply.raw_end()


class CutTap(PlainTap):
    """Breaks the connection after `after` chunks, or in the middle of the next one."""

    def __init__(self, after: int, reset: bool, half: bool) -> None:
        self._left, self._reset, self._half = after, reset, half
        self._cut = False

    def whole(self, reply: Reply, head: bytes, body: bytes) -> None:
        reply.conn.write(head + body[: len(body) // 2])
        self._drop(reply)

    def chunk(self, reply: Reply, data: bytes) -> None:
        if self._cut:
            return
        if self._left > 0:
            self._left -= 1
            reply.raw_chunk(data)
            if self._left == 0 and not self._half:
                self._drop(reply)
            return
        if self._half:
            part = data[: len(data) // 2]
            reply.conn.write(b"%x\r\n%b" % (len(data), part) if reply.chunked else part)
        self._drop(reply)

    def end(self, reply: Reply) -> None:
        if not self._cut:
            self._drop(reply)

    def _drop(self, reply: Reply) -> None:
        self._cut = True
        if self._reset:
            asyncio.get_running_loop().call_later(RST_GRACE_S, reply.drop, True)
        else:
            reply.drop(False)


class SilentTap(PlainTap):
    """Goes silent after `after` chunks; the connection stays open."""

    def __init__(self, after: int) -> None:
        self._left = after

    def whole(self, reply: Reply, head: bytes, body: bytes) -> None:
        reply.conn.write(head + body[: len(body) // 2])

    def chunk(self, reply: Reply, data: bytes) -> None:
        if self._left > 0:
            self._left -= 1
            reply.raw_chunk(data)

    def end(self, reply: Reply) -> None:
        return None


class ErrorTap(PlainTap):
    """Ends the stream as vLLM does when a generation fails: an error event, then [DONE]."""

    def __init__(self, after: int) -> None:
        self._left = after

    def chunk(self, reply: Reply, data: bytes) -> None:
        if self._left > 0:
            self._left -= 1
            reply.raw_chunk(data)
            return
        reply.raw_chunk(error_event("scripted fault"))
        reply.raw_chunk(DONE)
        reply.raw_end()
        if reply.on_gone is not None:
            reply.on_gone()


class SlowTap(PlainTap):
    """Spaces the chunks out; a whole reply comes late by one space."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s, self._next = gap_s, 0.0

    def whole(self, reply: Reply, head: bytes, body: bytes) -> None:
        self._later(reply, lambda: super(SlowTap, self).whole(reply, head, body))

    def chunk(self, reply: Reply, data: bytes) -> None:
        self._later(reply, lambda: reply.raw_chunk(data))

    def end(self, reply: Reply) -> None:
        self._later(reply, reply.raw_end, gap=False)

    def _later(self, reply: Reply, act: Callable[[], None], gap: bool = True) -> None:
        loop = asyncio.get_running_loop()
        self._next = max(self._next, loop.time()) + (self._gap_s if gap else 0.0)
        loop.call_at(self._next, lambda: None if reply.gone or reply.ended else act())
