"""One connection as an engine sees it, and one request on it, exactly as they arrived.

Invariant: `gone_at` is set once, at the first sign (reader, writer or kernel) that the other side
left, and never by our own closing.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import waiting
from harness.wire import Head, Wire

if TYPE_CHECKING:
    from harness.upstream import Engine

SCRIPT_WAIT_S = 20.0


@dataclass(slots=True, repr=False)
class Seen:
    """One request as it arrived. Times are monotonic seconds, 0.0 = did not happen."""

    head: Head
    peer: Peer
    body: bytes = b""
    chunks: int = 0  # chunk count where the body came chunked
    framing: str = "none"
    complete: bool = False  # the body arrived whole
    at: float = 0.0
    done_at: float = 0.0  # the script returned

    @property
    def method(self) -> str:
        return self.head.start[0].decode()

    @property
    def target(self) -> str:
        return self.head.start[1].decode("latin-1")

    def header(self, name: str) -> str | None:
        value = self.head.get(name)
        return None if value is None else value.decode("latin-1")


Script = Callable[["Peer", Seen], None]


class Peer(Wire):
    """One accepted connection. `gone_at`: when the kernel told that the other side left."""

    def __init__(self, sock: socket.socket, engine: Engine) -> None:
        super().__init__(sock)
        self.engine = engine
        self.gone_at = 0.0
        self.carried = 0  # data requests, control ones not counted
        self.closed = False
        self.sent = 0  # bytes of the present exchange, as is `received`

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = self.sock.send(view)
            self.sent += count
            view = view[count:]

    def left(self) -> None:
        """Notes that the other side is gone; the first to see it (reader, writer, epoll) counts."""
        with self.engine.changed:
            if not self.closed and not self.gone_at:
                self.gone_at = time.monotonic()
                self.engine.changed.notify_all()

    def fill(self, size: int = 1 << 18) -> bool:
        try:
            more = super().fill(size)
        except ConnectionError:
            self.left()
            raise
        if not more:
            self.left()
        return more

    def chunk_out(self, data: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def last_chunk(self) -> None:
        self.send(b"0\r\n\r\n")

    def wait_gone(self, timeout_s: float = SCRIPT_WAIT_S) -> float:
        """Blocks until the gateway has closed this connection; returns the moment."""
        self.engine.wait(lambda: self.gone_at, "the gateway to close the connection", timeout_s)
        return self.gone_at

    def wait_stalled(self, timeout_s: float = 15.0) -> int:
        """Blocks until a write stands still for a while: the other side holds back. Bytes sent."""
        waiting.until_still(lambda: self.sent, "the engine to be held back", timeout_s)
        return self.sent

    def close(self) -> None:
        self.closed = True
        super().close()

    def reset(self) -> None:
        self.closed = True
        # shutdown() would send FIN first; another thread blocked in recv() is woken by it, though,
        # and only the connection's own thread calls this, so there is none.
        super().reset()

    def reset_from_outside(self) -> None:
        """RST at once, from another thread than the connection's own: its blocked recv() would keep
        a closed socket alive until bytes came. Connecting to nowhere dissolves the connection.
        """
        self.closed = True
        nowhere = struct.pack("H14x", socket.AF_UNSPEC)
        if ctypes.CDLL(None, use_errno=True).connect(self.sock.fileno(), nowhere, len(nowhere)):
            raise OSError(ctypes.get_errno(), "the connection could not be dissolved")


def read_body(peer: Peer, seen: Seen) -> None:
    """Reads the request's body as its head frames it, into `seen`."""
    if (seen.header("expect") or "").lower() == "100-continue":
        peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    seen.framing, seen.body, chunks = peer.body(seen.head)
    seen.chunks = len(chunks)
    seen.complete = True
    peer.engine.note()
