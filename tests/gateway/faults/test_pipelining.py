"""Order: replies on a connection come in the order of its requests, whatever they are made of."""

from __future__ import annotations

import contextlib
import threading

from harness import scripts
from harness.client import Client, prompt, request_bytes
from harness.gateway import PeakRss
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


def flood(stage: Stage, client: Client) -> int:
    """Pipelines requests behind a running one until the socket takes no more; the bytes taken."""
    client.send(request_bytes(prompt()))
    stage.engine.wait_seen()
    client.sock.settimeout(0.5)
    sent, more = 0, request_bytes(prompt()) * 1000
    with contextlib.suppress(TimeoutError, ConnectionError):
        while sent < 32 << 20:
            sent += client.sock.send(more)
    return sent


def test_pipelined_bytes_are_bounded_while_an_exchange_runs(stage: Stage, lane: str) -> None:
    """A client cannot make the gateway hold megabytes of requests that wait their turn."""
    go = threading.Event()

    def held(peer: Peer, seen: Seen) -> None:
        go.wait(10)
        peer.send(scripts.reply_bytes(headers=(("Connection", "close"),)))

    stage.engine.script = held
    client = stage.client(lane)
    with PeakRss(stage.gateway) as memory:
        sent = flood(stage, client)
    assert sent < 16 << 20, f"{sent} bytes were taken in while one exchange ran"
    assert len(stage.engine.seen) == 1
    assert memory.growth_kib < 4096
    client.reset()
    go.set()


def test_leaving_behind_a_flood_of_pipelined_requests_is_noticed(stage: Stage, lane: str) -> None:
    """Reading stops when enough waits unread: that must not hide that the client has left."""
    stage.engine.script = scripts.hangs
    client = stage.client(lane)
    flood(stage, client)
    client.reset()
    stage.engine.seen[0].peer.wait_gone(2)


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


def test_get_with_a_body_does_not_shift_the_next_request(stage: Stage, lane: str) -> None:
    """A body on GET is legal: read as a request it would be the attacker's next one."""
    hidden = request_bytes(prompt(), target="/v1/completions?hidden")
    length = (("Content-Length", str(len(hidden))),)
    client = stage.client(lane)
    client.send(
        request_bytes(method="GET", target="/v1/models", headers=length, framed=False)
        + hidden
        + request_bytes(prompt(), target="/v1/completions?real")
    )
    assert client.reply("GET").status == 200
    assert client.reply().status == 200
    assert [seen.target for seen in stage.engine.seen] == ["/v1/completions?real"]


def test_streams_side_by_side_do_not_mix(stage: Stage, lane: str) -> None:
    """Fifty streams at once over shared code and buffers: each client gets its own events."""

    def named(peer: Peer, seen: Seen) -> None:
        name = seen.target.partition("?")[2]
        scripts.streams([scripts.event(f"{name}-{n}" * 50) for n in range(20)])(peer, seen)

    stage.engine.script = named
    clients = [stage.client(lane) for _ in range(50)]
    for number, client in enumerate(clients):
        client.send(request_bytes(prompt(True), target=f"/v1/completions?c{number}"))
    for number, client in enumerate(clients):
        events = [scripts.event(f"c{number}-{n}" * 50) for n in range(20)]
        assert client.reply().body == b"".join(events) + scripts.DONE
