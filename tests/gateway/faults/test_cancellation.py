"""Leaving: whatever way a client goes, and in whatever phase, its engine is let go within 200 ms.

PS#634, LL#30244, LL#37140, LL#36429: closing the client did not stop the generation.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from harness import scripts
from harness.client import Client, prompt, request_bytes
from harness.stage import Stage
from harness.upstream import Seen, answer_ok

LEFT_S = 0.2  # design: "reaches the engine within 200 ms"
WAYS: dict[str, Callable[[Client], None]] = {
    "fin": Client.close,
    "half_close": Client.half_close,
    "reset": Client.reset,
}


@pytest.fixture(params=sorted(WAYS))
def leave(request: pytest.FixtureRequest) -> Callable[[Client], float]:
    """Makes the client leave and returns the moment it did."""

    def go(client: Client) -> float:
        moment = time.monotonic()
        WAYS[request.param](client)
        return moment

    return go


def assert_let_go(seen: Seen, moment: float) -> None:
    gone = seen.peer.wait_gone(5)
    assert gone - moment < LEFT_S, f"engine was held for {gone - moment:.3f} s"


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_before_the_reply_begins_closes_the_engine(
    stage: Stage, lane: str, leave: Callable[[Client], float], stream: bool
) -> None:
    """LL#37140: the engine computes on for a client that left before the reply's head."""
    stage.engine.script = scripts.hangs
    client = stage.client(lane)
    client.send(request_bytes(prompt(stream)))
    seen = stage.engine.wait_seen()
    assert_let_go(seen, leave(client))
    stage.wait_quiet()


def test_leaving_mid_stream_closes_the_engine(
    stage: Stage, lane: str, leave: Callable[[Client], float]
) -> None:
    """PS#634: the client reads three chunks and closes; generation goes on upstream."""
    reply = scripts.Stepwise(*[scripts.event(str(n)) for n in range(9)])
    stage.engine.script = reply
    client = stage.client(lane)
    client.send(request_bytes(prompt(True)))
    reply.step(3)
    client.head()
    client.chunks_until(b'"text": "2"')
    seen = stage.engine.seen[0]
    assert_let_go(seen, leave(client))
    stage.wait_quiet()
    assert len(stage.engine.seen) == 1


def test_leaving_amid_a_plain_reply_closes_the_engine(
    stage: Stage, lane: str, leave: Callable[[Client], float]
) -> None:
    """LL#37140 for stream:false: half of a content-length body has been read."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    reply = scripts.Stepwise(b"x" * 50, b"x" * 50, head=head, chunked=False)
    stage.engine.script = reply
    client = stage.client(lane)
    client.send(request_bytes(prompt()))
    reply.step()
    client.head()
    assert client.take(50) == b"x" * 50
    assert_let_go(stage.engine.seen[0], leave(client))
    stage.wait_quiet()


def test_leaving_amid_a_buffered_body_sends_nothing_upstream(
    stage: Stage, lane: str, leave: Callable[[Client], float]
) -> None:
    """A JSON body that never completes must not reach an engine in any form."""
    client = stage.client(lane)
    client.send(request_bytes(prompt())[:-5])
    leave(client)
    assert client.sock.fileno() < 0 or client.ends_within(2)
    assert stage.ask(lane, prompt()).status == 200
    assert len(stage.engine.seen) == 1


def test_leaving_amid_a_streamed_upload_closes_the_engine(
    stage: Stage, lane: str, leave: Callable[[Client], float]
) -> None:
    """An upload that streams through is cut off at the engine when its client leaves."""
    stage.engine.script = scripts.reads_all
    client = stage.client(lane)
    upload(client, total=1 << 20, send=300_000)
    seen = stage.engine.wait_seen()
    stage.engine.wait(lambda: seen.peer.received > 250_000, "the upload's first part")
    assert_let_go(seen, leave(client))
    assert not seen.complete
    stage.wait_quiet()


def test_leaving_while_not_reading_is_noticed(
    stage: Stage, lane: str, leave: Callable[[Client], float]
) -> None:
    """A paused read hides a FIN: the client has stopped reading, its engine is held back."""
    stage.engine.script = scripts.floods
    client = stage.client(lane, receive_buffer=4096)
    client.send(request_bytes(prompt(True)))
    seen = stage.engine.wait_seen()
    seen.peer.wait_stalled()
    assert_let_go(seen, leave(client))
    stage.wait_quiet()


def test_half_close_with_a_pipelined_request_is_leaving_too(stage: Stage, lane: str) -> None:
    """Bytes of a next request that lie unread must not hide the FIN behind them."""
    stage.engine.script = scripts.hangs
    client = stage.client(lane)
    client.send(request_bytes(prompt()) * 2)
    seen = stage.engine.wait_seen()
    moment = time.monotonic()
    client.half_close()
    assert_let_go(seen, moment)
    stage.wait_quiet()
    assert len(stage.engine.seen) == 1, "the second request was started for a client that left"


def test_many_leaving_at_once_do_not_block_the_others(stage: Stage, lane: str) -> None:
    """LL#36429: clean-up of cancelled streams did work on the event loop and stalled everybody."""
    count, text = 200, "x" * 100_000
    stage.engine.script = by_target(long=scripts.starts(scripts.event(text)), short=answer_ok)
    clients = [stage.client(lane) for _ in range(count)]
    for client in clients:
        client.send(request_bytes(prompt(True), target="/v1/completions?long"))
    for client in clients:
        client.head()
        client.take_through(b'xx"')
    with Client(("127.0.0.1", stage.ports[lane])) as other:
        for client in clients:
            client.reset()
        waits = []
        for _ in range(100):
            started = time.monotonic()
            assert other.ask(prompt(), target="/v1/completions?short").status == 200
            waits.append(time.monotonic() - started)
    # 20 ms of loop lag is the aim; this clock also counts the harness's own 200 dying threads.
    assert sorted(waits)[94] < 0.1, f"p95 {sorted(waits)[94]:.3f} s, worst {max(waits):.3f} s"
    stage.wait_quiet()


def test_nothing_is_left_of_a_stream_that_was_cancelled(stage: Stage, lane: str) -> None:
    """LL#30244: the iterator's clean-up never ran, so logs and counters were missing."""
    reply = scripts.Stepwise(scripts.event(), scripts.event())
    stage.engine.script = reply
    lines = len(stage.gateway.access())
    client = stage.client(lane)
    client.send(request_bytes(prompt(True)))
    reply.step()
    client.head()
    client.chunks_until(b"data:")
    client.reset()
    stage.wait_quiet()
    stage.wait_log(lines + 1)
    assert stage.gateway.access()[-1]["status"] in ("200", "499")


def upload(client: Client, total: int, send: int) -> None:
    head = request_bytes(
        method="POST",
        target="/v1/audio/transcriptions",
        headers=(
            ("Content-Type", "multipart/form-data; boundary=b"),
            ("Content-Length", str(total)),
        ),
        framed=False,
    )
    client.send(head + b"-" * send)


def by_target(**named: scripts.Script) -> scripts.Script:
    """Chooses the script by the target's query string."""

    def script(peer: scripts.Peer, seen: Seen) -> None:
        named[seen.target.partition("?")[2]](peer, seen)

    return script
