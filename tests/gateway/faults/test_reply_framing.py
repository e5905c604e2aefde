"""Replies: however an engine frames its reply, the client gets a framing that is whole and agrees.

PS#733 (stale content-length), PS#960 (cut bodies taken for whole ones).
"""

from __future__ import annotations

import pytest
from harness import scripts
from harness.client import Client, prompt, request_bytes
from harness.shapes import error_of
from harness.stage import Stage
from harness.upstream import answer_ok
from harness.wire import Reply, Short

BODY = prompt()
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
JSON = b'{"id":"cmpl-1","choices":[{"text":"hello"}]}'
CHUNKS = b"7\r\n" + JSON[:7] + b"\r\n%x\r\n" % (len(JSON) - 7) + JSON[7:] + b"\r\n"

WHOLE: dict[str, tuple[bytes, str]] = {
    "length": (OK + b"content-length: %d\r\n\r\n" % len(JSON) + JSON, ""),
    "chunked": (OK + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\n\r\n", ""),
    "chunked_case": (OK + b"Transfer-Encoding: CHUNKED\r\n\r\n" + CHUNKS + b"0\r\n\r\n", ""),
    "trailers": (
        OK
        + b"transfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n"
        + CHUNKS
        + b"0\r\nx-sum: 1\r\nx-more: 2\r\n\r\n",
        "",
    ),
    "extensions": (
        OK
        + b"transfer-encoding: chunked\r\n\r\n%x;a=b\r\n" % len(JSON)
        + JSON
        + b"\r\n0;z\r\n\r\n",
        "",
    ),
    "close": (OK + b"\r\n" + JSON, "fin"),
    "close_said": (OK + b"connection: close\r\n\r\n" + JSON, "fin"),
    "length_and_close": (
        OK + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(JSON) + JSON,
        "fin",
    ),
    "http_1_0": (OK.replace(b"1.1", b"1.0") + b"\r\n" + JSON, "fin"),
    "http_1_0_length": (
        OK.replace(b"1.1", b"1.0") + b"content-length: %d\r\n\r\n" % len(JSON) + JSON,
        "fin",
    ),
    "interim": (
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
        + OK
        + b"content-length: %d\r\n\r\n" % len(JSON)
        + JSON,
        "",
    ),
    "stray_100": (
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: %d\r\n\r\n" % len(JSON) + JSON,
        "",
    ),
    "no_reason": (b"HTTP/1.1 200\r\ncontent-length: %d\r\n\r\n" % len(JSON) + JSON, ""),
    "odd_reason": (
        "HTTP/1.1 200 Schön: ok\r\n".encode() + b"content-length: %d\r\n\r\n" % len(JSON) + JSON,
        "",
    ),
}


def ask(stage: Stage, lane: str, **how: object) -> Reply:
    return stage.ask(lane, BODY, **how)


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
@pytest.mark.parametrize("name", sorted(WHOLE))
def test_every_legal_framing_arrives_whole(stage: Stage, lane: str, name: str, size: int) -> None:
    """The body is the same whatever framed it, and the connection lives on."""
    data, then = WHOLE[name]
    stage.engine.script = scripts.dribbles(data, size, then=then)
    client = stage.client(lane)
    reply = client.ask(BODY)
    assert (reply.status, reply.body) == (200, JSON)
    assert reply.framing in ("length", "chunked")
    assert "x-sum" not in reply.head.names and "trailer" not in reply.head.names
    stage.engine.script = answer_ok
    assert client.ask(BODY).status == 200


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_http_1_0_client_gets_no_chunks(stage: Stage, lane: str, name: str) -> None:
    """A 1.0 client cannot read chunks or 1xx: the body is plain, ended by length or by close."""
    data, then = WHOLE[name]
    stage.engine.script = scripts.sends(data, then=then)
    client = stage.client(lane)
    reply = client.ask(BODY, version="1.0")
    assert (reply.status, reply.body) == (200, JSON)
    assert reply.framing in ("length", "close") and not reply.interim
    assert client.ends_within(3), "an HTTP/1.0 connection is over unless it asked to stay"


def test_http_1_0_keep_alive_works_with_a_length(stage: Stage, lane: str) -> None:
    """ab and old clients say `Connection: keep-alive` and expect to hear it back."""
    client = stage.client(lane)
    for _ in range(2):
        reply = client.ask(BODY, version="1.0", headers=(("Connection", "keep-alive"),))
        assert reply.status == 200 and reply.framing == "length"
        assert (reply.header("connection") or "").lower() == "keep-alive"


def test_http_1_0_stream_is_ended_by_close(stage: Stage, lane: str) -> None:
    """SSE to a 1.0 client: plain bytes as they come, then FIN."""
    stage.engine.script = scripts.streams([scripts.event("a")])
    reply = stage.ask(lane, prompt(True), version="1.0")
    assert reply.framing == "close" and reply.body == scripts.event("a") + scripts.DONE


def test_connection_close_of_the_client_is_kept(stage: Stage, lane: str) -> None:
    client = stage.client(lane)
    reply = client.ask(BODY, headers=(("Connection", "close"),))
    assert reply.header("connection") == "close"
    assert client.ends_within(3)


CUT: dict[str, bytes] = {
    "length_short": OK + b"content-length: 1000\r\n\r\n" + JSON,
    "length_no_body": OK + b"content-length: 1000\r\n\r\n",
    "chunk_short": OK + b"transfer-encoding: chunked\r\n\r\n400\r\n" + JSON,
    "no_last_chunk": OK + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS,
    "no_end_of_trailers": OK + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\n",
}


@pytest.mark.parametrize("then", ["fin", "reset"])
@pytest.mark.parametrize("name", sorted(CUT))
def test_body_cut_short_is_an_error_for_the_client(
    stage: Stage, lane: str, name: str, then: str
) -> None:
    """PS#960: a 200 whose body was cut must never look complete."""
    stage.engine.script = scripts.sends(CUT[name], then=then)
    client = stage.client(lane)
    client.send(request_bytes(BODY))
    try:
        reply = client.reply()
    except Short:
        return
    error_of(reply, 502)


BROKEN: dict[str, bytes] = {
    "not_http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "empty_lines": b"\r\n\r\n\r\n\r\n",
    "no_version": b"200 OK\r\n\r\n",
    "http_2": b"HTTP/2 200\r\ncontent-length: 0\r\n\r\n",
    "status_word": b"HTTP/1.1 abc OK\r\ncontent-length: 0\r\n\r\n",
    "status_low": b"HTTP/1.1 099 OK\r\ncontent-length: 0\r\n\r\n",
    "status_high": b"HTTP/1.1 1000 OK\r\ncontent-length: 0\r\n\r\n",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "cl_twice": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nabc",
    "cl_word": OK + b"content-length: many\r\n\r\n",
    "cl_minus": OK + b"content-length: -1\r\n\r\n",
    "te_gzip": OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "folded": OK + b"x-a: b\r\n c\r\ncontent-length: 0\r\n\r\n",
    "nul": OK + b"x-a: b\0c\r\ncontent-length: 0\r\n\r\n",
    "bare_cr": OK + b"x-a: b\rc\r\ncontent-length: 0\r\n\r\n",
    "no_colon": OK + b"x-a\r\ncontent-length: 0\r\n\r\n",
    "huge_head": OK + b"x-a: " + b"b" * (2 << 20) + b"\r\n\r\n",
    "many_headers": OK + b"x-a: b\r\n" * 20_000 + b"content-length: 0\r\n\r\n",
    "endless_interim": b"HTTP/1.1 102 Processing\r\n\r\n" * 10_000,
    "cut_head": OK,
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_reply_that_is_not_http_is_a_502(stage: Stage, lane: str, name: str) -> None:
    """A head that two readers could understand differently is not passed on."""
    stage.engine.script = scripts.sends(BROKEN[name], then="fin")
    client = stage.client(lane)
    error_of(client.ask(BODY), 502)
    stage.engine.script = answer_ok
    assert client.ask(BODY).status == 200
    assert len(stage.engine.seen) == 2, "a request was sent twice"


def test_reply_with_both_lengths_is_refused_or_chunked(stage: Stage, lane: str) -> None:
    """RFC 9112 §6.3: chunked overrules; the length must not be passed on, nor believed."""
    stage.engine.script = scripts.sends(
        OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        then="fin",
    )
    reply = ask(stage, lane)
    if reply.status == 200:
        assert reply.body == b"hello" and reply.header("content-length") in (None, "5")
    else:
        error_of(reply, 502)


@pytest.mark.parametrize(
    "extra", [b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad", b"junk", b"\r\n"]
)
def test_bytes_behind_a_reply_never_reach_anybody(stage: Stage, lane: str, extra: bytes) -> None:
    """Response splitting: a second reply on the wire must not answer the next request."""
    stage.engine.script = scripts.in_turn(
        scripts.sends(OK + b"content-length: 2\r\n\r\nok" + extra), answer_ok
    )
    first, second = stage.client(lane), stage.client(lane)
    assert first.ask(BODY).body == b"ok"
    for client in (second, first):
        reply = client.ask(BODY)
        assert reply.status == 200 and b"text_completion" in reply.body, reply.body


def test_bytes_behind_the_last_chunk_never_reach_anybody(stage: Stage, lane: str) -> None:
    stage.engine.script = scripts.in_turn(
        scripts.sends(OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200"),
        answer_ok,
    )
    client = stage.client(lane)
    assert client.ask(BODY).body == b"ok"
    assert b"text_completion" in client.ask(BODY).body


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("head", [b"", b"content-length: 0\r\n", b"content-length: 50\r\n"])
def test_statuses_without_body(stage: Stage, lane: str, status: int, head: bytes) -> None:
    """204 and 304 have no body whatever their head says; the connection goes on."""
    stage.engine.script = scripts.in_turn(
        scripts.sends(b'HTTP/1.1 %d X\r\netag: "1"\r\n%b\r\n' % (status, head)), answer_ok
    )
    client = stage.client(lane)
    reply = client.ask(BODY)
    assert reply.status == status and reply.header("etag") == '"1"'
    assert client.ask(BODY).status == 200


@pytest.mark.parametrize(
    "framing", [b"content-length: 50\r\n", b"transfer-encoding: chunked\r\n", b""]
)
def test_head_request_has_no_body(stage: Stage, lane: str, framing: bytes) -> None:
    """HEAD: the engine's length is news, not a body to wait for."""
    stage.engine.script = scripts.in_turn(scripts.sends(OK + framing + b"\r\n"), answer_ok)
    client = stage.client(lane)
    reply = client.ask(method="HEAD", target="/v1/things", framed=False)
    assert reply.status == 200 and reply.body == b""
    assert stage.engine.seen[0].method == "HEAD"
    assert client.silent_for(0.05)
    assert client.ask(BODY).status == 200


def test_empty_bodies(stage: Stage, lane: str) -> None:
    for framing in (b"content-length: 0\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"):
        stage.engine.script = scripts.sends(OK + framing)
        assert ask(stage, lane).body == b""


def test_early_reply_before_the_body_is_sent(stage: Stage, lane: str) -> None:
    """An engine that answers 413 without reading an upload: the client gets that answer."""

    @scripts.unread
    def early(peer: scripts.Peer, seen: scripts.Seen) -> None:
        peer.send(scripts.reply_bytes(b'{"error":"too big"}', 413, (("connection", "close"),)))
        scripts.hangs(peer, seen)

    stage.engine.script = early
    client = stage.client(lane)
    head = request_bytes(
        target="/v1/audio/transcriptions",
        headers=(("Content-Type", "multipart/form-data"), ("Content-Length", "1000000")),
        framed=False,
    )
    client.send(head + b"x" * 1000)
    reply = client.reply()
    assert (reply.status, reply.body) == (413, b'{"error":"too big"}')


def test_request_id_of_a_lost_reply_is_not_reused(stage: Stage, lane: str) -> None:
    """After a 502 the client's connection and the next request are as good as new."""
    stage.engine.script = scripts.in_turn(scripts.closes, answer_ok)
    with Client(("127.0.0.1", stage.ports[lane])) as client:
        error_of(client.ask(BODY), 502)
        assert client.ask(BODY).status == 200
    first, second = stage.engine.seen
    assert first.header("x-request-id") != second.header("x-request-id")
