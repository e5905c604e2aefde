"""Expect: 100-continue: the client hears 100 or a final answer before it sends its body."""

from __future__ import annotations

from harness import scripts
from harness.client import prompt, request_bytes
from harness.shapes import error_of
from harness.stage import Stage

BODY = prompt()
EXPECT = ("Expect", "100-continue")


def head(size: int, target: str = "/v1/completions", version: str = "1.1") -> bytes:
    headers = (EXPECT, ("Content-Type", "application/json"), ("Content-Length", str(size)))
    return request_bytes(headers=headers, framed=False, target=target, version=version)


def test_expectation_is_met_before_the_body(stage: Stage, lane: str) -> None:
    """curl waits a second for the 100 on bodies above 1 KiB: it must come at once."""
    client = stage.client(lane)
    client.send(head(len(BODY)))
    assert client.head().start[1] == b"100"
    client.send(BODY)
    assert client.reply().status == 200
    seen = stage.engine.seen[0]
    assert seen.body == BODY and seen.header("expect") is None


def test_body_sent_without_waiting_is_served_once(stage: Stage, lane: str) -> None:
    client = stage.client(lane)
    client.send(head(len(BODY)) + BODY)
    assert client.reply().status == 200
    assert client.ask(BODY).status == 200
    assert len(stage.engine.seen) == 2


def test_too_large_a_body_is_refused_instead_of_continued(stage: Stage, lane: str) -> None:
    """No 100 for a body that would be thrown away."""
    client = stage.client(lane)
    client.send(head(65 << 20))
    reply = client.reply()
    assert not reply.interim
    error_of(reply, 413)


def test_closed_path_is_refused_before_or_after_its_body(stage: Stage, lane: str) -> None:
    """Invited with a 100 or not: the 404 comes, and the body is never read as the next request."""
    client = stage.client(lane)
    body = prompt() + request_bytes(prompt())
    client.send(head(len(body), target="/sleep"))
    first = client.head()
    if first.start[1] == b"100":
        client.send(body)
        error_of(client.reply(), 404)
        assert client.ask(BODY).status == 200
    else:
        assert first.start[1] == b"404" and client.ends_within(3)
    assert all(seen.body == BODY for seen in stage.engine.seen)


def test_streamed_upload_is_continued_too(stage: Stage, lane: str) -> None:
    stage.engine.script = scripts.reads_all
    client = stage.client(lane)
    headers = (EXPECT, ("Content-Type", "multipart/form-data"), ("Content-Length", "1000"))
    client.send(request_bytes(headers=headers, framed=False, target="/v1/audio/transcriptions"))
    assert client.head().start[1] == b"100"
    client.send(b"x" * 1000)
    assert client.reply().status == 200
    assert stage.engine.seen[0].body == b"x" * 1000


def test_http_1_0_client_gets_no_interim_reply(stage: Stage, lane: str) -> None:
    """RFC 9110 §10.1.1: an expectation in HTTP/1.0 is ignored."""
    client = stage.client(lane)
    client.send(head(len(BODY), version="1.0"))
    assert client.silent_for(0.1)
    client.send(BODY)
    reply = client.reply()
    assert reply.status == 200 and not reply.interim
