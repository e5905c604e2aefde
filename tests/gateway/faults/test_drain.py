"""Going down: readiness says so first, then listeners close, what runs is finished, then it ends.

SMG#1745, GIE#549, AX#2283.
"""

from __future__ import annotations

import signal
import socket

import pytest
from harness import scripts, waiting
from harness.client import prompt, request_bytes
from harness.stage import Conf, Play, Stage
from harness.upstream import answer_ok
from harness.wire import Reply

SETTLING = Conf(top="shutdown_delay 700ms; worker_shutdown_timeout 5s;")
HARD = Conf(top="worker_shutdown_timeout 500ms;")


def ready(stage: Stage) -> int:
    return stage.gateway.get("/kvgate/ready")[0]


def refused(stage: Stage, lane: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", stage.ports[lane]), 1):
            return False
    except OSError:
        return True


def test_drain_says_503_first_and_finishes_what_runs(own: Play, lane: str) -> None:
    """SMG#1745: accept stopped before the load balancer had learned of it."""
    stage = own(SETTLING)
    reply = scripts.Stepwise(scripts.event("one"), scripts.event("two"))
    stage.engine.script = reply
    client = stage.client(lane)
    client.send(request_bytes(prompt(True)))
    reply.step()
    client.head()
    client.chunks_until(b"one")
    assert ready(stage) == 200
    stage.gateway.signal(signal.SIGQUIT)
    waiting.until(lambda: ready(stage) == 503, "readiness to say 503", 2)
    # Still served: the balancer needs its time.
    stage.engine.script = answer_ok
    assert stage.ask(lane, prompt()).status == 200
    waiting.until(lambda: refused(stage, lane), "the listener to close", 3)
    assert stage.gateway.alive
    reply.step(2)
    client.chunks_until(b"two")
    assert client.chunk() == b""
    assert client.ends_within(2)
    assert stage.gateway.wait_exit() == 0


def test_idle_connections_are_closed_at_once(own: Play, lane: str) -> None:
    stage = own(Conf())
    client = stage.client(lane)
    assert client.ask(prompt()).status == 200
    stage.gateway.signal(signal.SIGQUIT)
    assert client.ends_within(2)
    assert stage.gateway.wait_exit(3) == 0


def test_drain_has_a_deadline(own: Play, lane: str) -> None:
    """A stream that never ends does not keep the process for ever."""
    stage = own(HARD)
    stage.engine.script = scripts.starts(scripts.event("a"))
    client = stage.client(lane)
    client.send(request_bytes(prompt(True)))
    client.head()
    client.chunks_until(b"data:")
    stage.gateway.signal(signal.SIGQUIT)
    stage.gateway.wait_exit(4)
    assert client.ends_within(1)
    stage.engine.seen[0].peer.wait_gone(1)


def test_requests_on_a_draining_connection_are_told_to_close(own: Play, lane: str) -> None:
    """A keep-alive connection in use during the drain ends after its reply, with `close` said."""
    stage = own(SETTLING)
    slow = scripts.Stepwise(
        b"ok", head=b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", chunked=False
    )
    held = scripts.starts(scripts.event("a"))
    stage.engine.script = scripts.in_turn(held, slow)
    keeper = stage.client(lane)
    keeper.send(request_bytes(prompt(True)))
    stage.engine.wait_seen(1)
    client = stage.client(lane)
    client.send(request_bytes(prompt()))
    stage.engine.wait_seen(2)
    stage.gateway.signal(signal.SIGQUIT)
    waiting.until(lambda: refused(stage, lane), "the listener to close", 3)
    slow.step(2)
    reply: Reply = client.reply()
    assert reply.body == b"ok"
    assert client.ends_within(2)
    keeper.reset()
    assert stage.gateway.wait_exit() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_fast_shutdown_ends_streams_and_lets_engines_go(
    own: Play, lane: str, number: signal.Signals
) -> None:
    """TERM and INT are nginx's fast shutdown: no client left waiting, no engine computing."""
    stage = own(Conf(top="shutdown_delay 10s; worker_shutdown_timeout 10s;"))
    stage.engine.script = scripts.starts(scripts.event("a"))
    client = stage.client(lane)
    client.send(request_bytes(prompt(True)))
    client.head()
    client.chunks_until(b"data:")
    stage.gateway.signal(number)
    assert client.ends_within(2)
    stage.engine.seen[0].peer.wait_gone(2)
    assert stage.gateway.wait_exit(3) == 0


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data"])
def test_fast_shutdown_amid_an_upload_leaves_its_line(own: Play, lane: str, kind: str) -> None:
    """Kept or passed through: the client is told or cut off, and the access log says so."""
    stage = own(Conf())
    stage.engine.script = scripts.reads_all
    client = stage.client(lane)
    headers = (("Content-Type", kind), ("Content-Length", "1000"), ("Expect", "100-continue"))
    client.send(request_bytes(headers=headers, framed=False, target="/v1/audio/transcriptions"))
    if kind == "application/json":
        while b" 100 " not in client.buffer:  # it has read the head
            assert client.fill()
    else:
        stage.engine.wait_seen(1)
    client.send(b'{"model":')
    stage.gateway.signal(signal.SIGTERM)
    assert client.ends_within(3)
    assert stage.gateway.wait_exit(4) == 0
    (line,) = stage.gateway.access()
    assert (line["status"], line["request_method"]) == ("503", "POST")
    assert line["termination"] == ("GR" if kind == "application/json" else "GH"), line
