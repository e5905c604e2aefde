"""Order: replies on a connection come in the order of its requests, whatever they are made of."""

from __future__ import annotations

from harness import scripts
from harness.client import prompt, request_bytes
from harness.shapes import error_of
from harness.stage import Stage
from harness.upstream import Peer, Seen


def echo_number(peer: Peer, seen: Seen) -> None:
    peer.send(scripts.reply_bytes(seen.target.encode()))


def test_pipelined_replies_keep_their_order(stage: Stage, lane: str) -> None:
    """A slow first reply is not overtaken by a fast second one."""
    slow = scripts.Stepwise(
        b"slow", head=b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n", chunked=False
    )
    stage.engine.script = scripts.in_turn(slow, echo_number)
    client = stage.client(lane)
    client.send(
        request_bytes(prompt(), target="/v1/completions?0")
        + request_bytes(prompt(), target="/v1/completions?1")
        + request_bytes(method="GET", target="/v1/models")
    )
    assert slow.started.wait(5)
    slow.step(2)
    assert client.reply().body == b"slow"
    assert client.reply().body == b"/v1/completions?1"
    assert b"max_model_len" in client.reply("GET").body


def test_locally_made_reply_waits_for_the_exchange_before_it(stage: Stage, lane: str) -> None:
    """The second request needs no engine: its 404 must still come second."""
    slow = scripts.Stepwise(scripts.event("one"), scripts.event("two"))
    stage.engine.script = slow
    client = stage.client(lane)
    client.send(request_bytes(prompt(True)) + request_bytes(method="GET", target="/nowhere"))
    slow.step()
    client.head()
    client.chunks_until(b"one")
    assert client.silent_for(0.1)
    slow.step(2)
    client.chunks_until(b"two")
    assert client.chunk() == b""
    error_of(client.reply("GET"), 404)


def test_parse_error_never_overtakes_a_running_exchange(stage: Stage, lane: str) -> None:
    """Garbage behind a good request is answered behind its reply, then the connection ends."""
    slow = scripts.Stepwise(scripts.event("one"), scripts.event("two"))
    stage.engine.script = slow
    client = stage.client(lane)
    client.send(request_bytes(prompt(True)) + b"\x00garbage\r\n\r\n")
    slow.step()
    client.head()
    payload = client.chunks_until(b"one")
    assert client.silent_for(0.1)
    slow.step(2)
    payload += client.chunks_until(b"two")
    assert client.chunk() == b""
    assert payload == scripts.event("one") + scripts.event("two")
    error_of(client.reply(), 400)
    assert client.ends_within(3)


def test_a_hundred_pipelined_requests_are_served_in_order(stage: Stage, lane: str) -> None:
    """All in one write, then again a byte-dribbled one: no request is lost or doubled."""
    stage.engine.script = echo_number
    client = stage.client(lane)
    targets = [f"/v1/completions?{number}" for number in range(100)]
    client.send(b"".join(request_bytes(prompt(), target=target) for target in targets))
    assert [client.reply().body.decode() for _ in targets] == targets
    client.dribble(b"".join(request_bytes(prompt(), target=target) for target in targets[:5]), 7)
    assert [client.reply().body.decode() for _ in range(5)] == targets[:5]
    assert len(stage.engine.seen) == 105


def test_pipelined_bytes_are_bounded_while_an_exchange_runs(stage: Stage, lane: str) -> None:
    """A client cannot make the gateway hold megabytes of requests that wait their turn."""
    stage.engine.script = scripts.hangs
    client = stage.client(lane)
    client.send(request_bytes(prompt()))
    stage.engine.wait_seen()
    client.sock.settimeout(0.5)
    sent, more = 0, request_bytes(prompt()) * 1000
    try:
        while sent < 32 << 20:
            sent += client.sock.send(more)
    except (TimeoutError, ConnectionError):
        pass
    assert sent < 16 << 20, f"{sent} bytes were taken in while one exchange ran"
    assert len(stage.engine.seen) == 1


def test_connections_do_not_wait_for_each_other(stage: Stage, lane: str) -> None:
    """Order binds one connection, not its neighbours."""
    slow = scripts.Stepwise(scripts.event("one"))
    stage.engine.script = scripts.in_turn(slow, echo_number)
    first = stage.client(lane)
    first.send(request_bytes(prompt(True)))
    assert slow.started.wait(5)
    assert stage.ask(lane, prompt()).status == 200
    slow.step(2)
    assert first.reply().body == scripts.event("one")
