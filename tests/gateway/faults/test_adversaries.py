"""What an anonymous client could once do to others. Each must stay undone."""

from __future__ import annotations

import contextlib
import time

import pytest
from harness import scripts
from harness.client import prompt, request_bytes
from harness.peer import Peer, Seen, read_body
from harness.shapes import error_of
from harness.stage import Conf, Play, Stage
from harness.wire import Short

BODY = prompt()
ALIASED = Conf(
    proxy_pass="http://named",
    extra="upstream named { model m1 alias=default; server {e0}; health_check off; }",
)
CLOSED = b"POST /reset_prefix_cache HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("lines", [60, 110, 120, 199])
def test_headers_without_a_blank_do_not_outgrow_the_head(
    stage: Stage, lane: str, lines: int
) -> None:
    """`a:` goes on as `a: `: two hundred such lines once ran over the end of the buffer, or cut
    the head short so that the body was read as another request.
    """
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
    head += b"".join(b"h%d:\r\n" % n for n in range(lines - 3))
    body = b":0\r\n\r\n" + CLOSED
    client = stage.client(lane)
    client.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert client.reply().status == 200
    assert client.ask(BODY).status == 200
    assert [seen.target for seen in stage.engine.seen] == ["/v1/completions"] * 2
    assert stage.engine.seen[0].body == body
    assert len(stage.engine.seen[0].head.all("h1")) == 1


def test_an_early_answer_to_a_large_body_does_not_spoil_the_connection(
    stage: Stage, lane: str
) -> None:
    """The rest of the unread body still lay in front of the next request."""

    @scripts.unread
    def refuses(peer: Peer, seen: Seen) -> None:
        scripts.says(b'{"error":{}}', 400)(peer, seen)
        with contextlib.suppress(ConnectionError, Short):  # the gateway need not send the rest
            read_body(peer, seen)

    stage.engine.script = refuses
    client = stage.client(lane)
    client.sock.settimeout(20)
    body = b'{"model":"m1","prompt":"' + b"x" * (20 << 20) + b'"}'
    client.send(request_bytes(body))
    assert client.reply().status == 400
    stage.engine.script = scripts.says(b"{}", 200)
    started = time.monotonic()
    with stage.client(lane) as other:
        assert other.ask(BODY).status == 200
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("method", ["post", "Post", "FOO"])
def test_a_method_that_is_not_known_to_be_safe_is_not_repeated(
    stage: Stage, lane: str, method: str
) -> None:
    """RFC 9110 §9.2.2: only idempotent methods may be sent twice."""
    stage.engine.script = lambda peer, seen: peer.reset()
    client = stage.client(lane)
    client.send(request_bytes(BODY, method=method))
    assert client.reply().status in (400, 405, 502)
    assert len(stage.engine.seen) <= 1


def test_a_form_of_very_many_parts_does_not_stop_the_others(play: Play, lane: str) -> None:
    """Sixteen megabytes of boundaries once held the event loop for seconds."""
    stage = play(ALIASED)
    kind = ("Content-Type", "multipart/form-data; boundary=a")
    client = stage.client(lane)
    client.send(request_bytes(b"--a\r\n\r\n\r\n" * 400_000, headers=(kind,)))
    started = time.monotonic()
    with stage.client(lane) as other:
        assert other.ask(BODY).status == 200
    assert time.monotonic() - started < 2
    client.reply()


@pytest.mark.parametrize("host", ["a b", "b@a", "b/../a", "a,b", "a?b"])
def test_a_host_that_is_none_is_400(stage: Stage, lane: str, host: str) -> None:
    client = stage.client(lane)
    client.send(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    error_of(client.reply(), 400)


def test_a_users_own_model_field_is_not_the_replys(play: Play, lane: str) -> None:
    """Metadata of a request comes back in a response; only the reply's own model is renamed."""
    stage = play(ALIASED)
    event = b'{"type":"response.created","response":{"metadata":{"model":"mine"},"model":"m1"}}'
    stage.engine.script = scripts.streams([b"event: response.created\ndata: " + event + b"\n\n"])
    client = stage.client(lane)
    reply = client.ask(b'{"model":"default","input":"x","stream":true}', target="/v1/responses")
    assert b'"metadata":{"model":"mine"},"model":"default"' in reply.body
