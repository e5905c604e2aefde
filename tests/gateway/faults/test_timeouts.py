"""Four timeouts, each ends what it is for, with the right status. SG#16320, octos#2170."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

from harness import scripts
from harness.client import prompt, request_bytes
from harness.shapes import error_of, lost_event
from harness.stage import Conf, Play

BODY = prompt()
QUICK = Conf(
    location="proxy_connect_timeout 300ms; proxy_send_timeout 300ms; "
    "proxy_first_byte_timeout 300ms; proxy_read_timeout 300ms;"
)
TWO_QUICK = QUICK.but(engines=2)
TOTAL = Conf(location="proxy_total_timeout 400ms;")
DOWN = Conf(server_args="down", ready="/kvgate/health")
SOON_S = (0.25, 1.5)


def timed(started: float) -> None:
    low, high = SOON_S
    took = time.monotonic() - started
    assert low < took < high, f"{took:.3f} s"


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port whose accept queue is full: connecting neither succeeds nor fails."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(("127.0.0.1", port))
        yield port


def test_connect_timeout_is_504(own: Play, lane: str) -> None:
    """SG#16320: a timeout was reported as 500 or 502."""
    with deaf_port() as port:
        conf = QUICK.but(
            extra=f"upstream deaf {{ model m1; server 127.0.0.1:{port}; health_check off; }}"
        )
        stage = own(conf.but(proxy_pass="http://deaf"))
        started = time.monotonic()
        error_of(stage.ask(lane, BODY), 504)
        timed(started)


def test_first_byte_timeout_is_504_and_not_replayed(play: Play, lane: str) -> None:
    """The engine may be computing: a second engine must not start the same."""
    stage = play(TWO_QUICK)
    for engine in stage.engines:
        engine.script = scripts.hangs
    started = time.monotonic()
    error_of(stage.ask(lane, BODY), 504)
    timed(started)
    assert sum(len(engine.seen) for engine in stage.engines) == 1
    [seen] = [seen for engine in stage.engines for seen in engine.seen]
    seen.peer.wait_gone(1)


def test_half_a_head_is_no_first_byte(play: Play, lane: str) -> None:
    """An engine that drips a head must not live for ever."""
    stage = play(QUICK)

    def half(peer: scripts.Peer, seen: scripts.Seen) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-")
        scripts.hangs(peer, seen)

    stage.engine.script = half
    started = time.monotonic()
    error_of(stage.ask(lane, BODY), 504)
    timed(started)


def test_interim_replies_do_not_extend_the_first_byte(play: Play, lane: str) -> None:
    stage = play(QUICK)

    def interim(peer: scripts.Peer, seen: scripts.Seen) -> None:
        peer.send(b"HTTP/1.1 102 Processing\r\n\r\n")
        scripts.hangs(peer, seen)

    stage.engine.script = interim
    started = time.monotonic()
    error_of(stage.ask(lane, BODY), 504)
    timed(started)


def test_send_timeout_is_504(play: Play, lane: str) -> None:
    """The engine takes the connection and then reads nothing of a large body."""
    stage = play(QUICK)
    stage.engine.script = scripts.never_reads
    started = time.monotonic()
    error_of(stage.ask(lane, BODY + b" " * (32 << 20)), 504)
    assert time.monotonic() - started < 5


def test_silence_amid_a_plain_reply_is_an_error(play: Play, lane: str) -> None:
    """proxy_read_timeout within a content-length body: no endless wait, no whole body."""
    stage = play(QUICK)

    def half(peer: scripts.Peer, seen: scripts.Seen) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
        scripts.hangs(peer, seen)

    stage.engine.script = half
    client = stage.client(lane)
    client.send(request_bytes(BODY))
    client.head()
    started = time.monotonic()
    assert client.ends_within(2)
    timed(started)
    assert bytes(client.buffer) == b"abc"


def test_total_timeout_before_the_head_is_504(play: Play, lane: str) -> None:
    stage = play(TOTAL)
    stage.engine.script = scripts.hangs
    started = time.monotonic()
    error_of(stage.ask(lane, BODY), 504)
    timed(started)


def test_total_timeout_ends_a_stream_that_goes_on(play: Play, lane: str) -> None:
    """The total one is for operators who want a cap: it ends even a lively stream, loudly."""
    stage = play(TOTAL)

    def lively(peer: scripts.Peer, seen: scripts.Seen) -> None:
        peer.send(scripts.SSE_HEAD)
        while not peer.gone_at:
            peer.chunk_out(scripts.event("a"))
            with contextlib.suppress(AssertionError):
                peer.wait_gone(0.05)

    stage.engine.script = lively
    started = time.monotonic()
    error = lost_event(stage.ask(lane, prompt(True)).body, "")
    timed(started)
    assert "time" in str(error["message"]).lower() + str(error["code"])


def test_no_engine_available_is_503(play: Play, lane: str) -> None:
    stage = play(DOWN)
    reply = stage.ask(lane, BODY)
    error_of(reply, 503, "no_engine_available")
    assert reply.header("retry-after")
    assert stage.gateway.get("/kvgate/ready")[0] == 503
    assert not stage.engine.seen


TOGETHER = Conf(
    engines=4,
    location="proxy_total_timeout 1s; proxy_first_byte_timeout 400ms;"
    " proxy_next_upstream error timeout non_idempotent;",
)


def test_the_total_timeout_is_of_all_tries_together(play: Play, lane: str) -> None:
    """Four silent engines: once each try had a second of its own."""
    stage = play(TOGETHER)
    for engine in stage.engines:
        engine.script = lambda peer, seen: peer.wait_gone()
    started = time.monotonic()
    with stage.client(lane) as client:
        error_of(client.ask(prompt()), 504)
    assert 0.9 < time.monotonic() - started < 1.8
    assert sum(len(engine.seen) for engine in stage.engines) == 3
