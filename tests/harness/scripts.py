"""Scripts for `Engine`: the replies, pauses and deaths that fault tests are put together from.

Invariant: a script never waits for time; it waits for an event or for the other side to leave.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable

from harness.peer import SCRIPT_WAIT_S, Peer, Script, Seen, read_body
from harness.upstream import unread

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
DONE = b"data: [DONE]\n\n"


def event(text: str = "x", **fields: object) -> bytes:
    """One completion chunk as vLLM writes it."""
    choice = {"index": 0, "text": text, "finish_reason": None}
    data = {"id": "cmpl-1", "object": "text_completion", "model": "m1", "choices": [choice]}
    return b"data: " + json.dumps({**data, **fields}, ensure_ascii=False).encode() + b"\n\n"


def reply_bytes(
    body: bytes = b"{}", status: int = 200, headers: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """A content-length reply."""
    lines = [f"HTTP/1.1 {status} Status", f"content-length: {len(body)}"]
    if not any(name.lower() == "content-type" for name, _ in headers):
        lines.append("content-type: application/json")
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def says(
    body: bytes = b"{}", status: int = 200, headers: tuple[tuple[str, str], ...] = ()
) -> Script:
    return sends(reply_bytes(body, status, headers))


def sends(data: bytes, *, then: str = "") -> Script:
    """Writes `data` as it is, then keeps the connection, or ends it: "fin", "reset"."""

    def script(peer: Peer, seen: Seen) -> None:
        peer.send(data)
        finish(peer, then)

    return script


def dribbles(data: bytes, size: int = 1, *, then: str = "") -> Script:
    def script(peer: Peer, seen: Seen) -> None:
        peer.dribble(data, size)
        finish(peer, then)

    return script


def finish(peer: Peer, then: str) -> None:
    if then == "fin":
        peer.close()
    elif then == "reset":
        peer.reset()


def streams(events: Iterable[bytes], *, done: bool = True, then: str = "") -> Script:
    """An SSE reply, one HTTP chunk per event."""
    parts = [*events, DONE] if done else list(events)

    def script(peer: Peer, seen: Seen) -> None:
        peer.send(SSE_HEAD)
        for part in parts:
            peer.chunk_out(part)
        if not then:
            peer.last_chunk()
        finish(peer, then)

    return script


def in_turn(*scripts: Script) -> Script:
    """The n-th request of this script gets the n-th script; the last one repeats."""
    lock, count = threading.Lock(), [0]

    def script(peer: Peer, seen: Seen) -> None:
        with lock:
            chosen = scripts[min(count[0], len(scripts) - 1)]
            count[0] += 1
        chosen(peer, seen)

    return script


def resets(peer: Peer, seen: Seen) -> None:
    """Takes the whole request, then RST before a byte of the reply."""
    peer.reset()


def closes(peer: Peer, seen: Seen) -> None:
    """Takes the whole request, then FIN before a byte of the reply."""
    peer.close()


def hangs(peer: Peer, seen: Seen) -> None:
    """Takes the request and says nothing until the gateway leaves."""
    with contextlib.suppress(AssertionError):
        peer.wait_gone()


@unread
def never_reads(peer: Peer, seen: Seen) -> None:
    """Leaves the request's body in the socket until the gateway leaves."""
    with contextlib.suppress(AssertionError):
        peer.wait_gone()


@unread
def reads_all(peer: Peer, seen: Seen) -> None:
    """Reads the body as it comes (so `peer.received` counts it), then answers."""
    read_body(peer, seen)
    peer.send(reply_bytes())


@unread
def floods(peer: Peer, seen: Seen) -> None:
    """An endless SSE reply, as fast as the other side takes it."""
    read_body(peer, seen)
    peer.send(SSE_HEAD)
    part = b"%x\r\n%b\r\n" % (len(event("y" * 1000)), event("y" * 1000))
    while True:
        peer.send(part)


def starts(*events: bytes) -> Script:
    """Sends the head and `events` of a stream, then says nothing more until the gateway leaves."""

    def script(peer: Peer, seen: Seen) -> None:
        peer.send(SSE_HEAD)
        for part in events:
            peer.chunk_out(part)
        hangs(peer, seen)

    return script


class Stepwise:
    """A reply in steps: each `part` goes out when the test calls `step()`, so order is the test's.

    The last step is the end: of the body where it is chunked, then FIN or RST where `then` says so.
    A gateway that leaves ends the script, so that no thread outlives its test.
    """

    def __init__(
        self, *parts: bytes, head: bytes = SSE_HEAD, chunked: bool = True, then: str = ""
    ) -> None:
        self.parts = parts
        self.then = then
        self.head = head
        self.chunked = chunked
        self.started = threading.Event()
        self.finished = threading.Event()
        self._allowed = 0

    def __call__(self, peer: Peer, seen: Seen) -> None:
        self._peer = peer
        self.started.set()
        try:
            if self.head:
                peer.send(self.head)
            for index, part in enumerate(self.parts):
                if not self._wait(peer, index + 1):
                    return
                peer.chunk_out(part) if self.chunked else peer.send(part)
            if not self._wait(peer, len(self.parts) + 1):
                return
            if self.chunked and not self.then:
                peer.last_chunk()
            finish(peer, self.then)
        finally:
            self.finished.set()

    def step(self, count: int = 1) -> None:
        """Lets `count` more parts out (the end of the body counts as one)."""
        assert self.started.wait(SCRIPT_WAIT_S), "the request never reached the engine"
        with self._peer.engine.changed:
            self._allowed += count
            self._peer.engine.changed.notify_all()

    def _wait(self, peer: Peer, step: int) -> bool:
        peer.engine.wait(
            lambda: self._allowed >= step or peer.gone_at, "the test's step", SCRIPT_WAIT_S
        )
        return not peer.gone_at
