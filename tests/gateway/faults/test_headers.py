"""Header fields: what is between two hops stays there, what is for the end passes, once.

PS#836, LL#25624, EA#2410, AX#2122, AX#2527, SG#3070.
"""

from __future__ import annotations

import gzip

import pytest
from harness import scripts
from harness.client import prompt
from harness.stage import Conf, Play, Stage
from harness.upstream import answer_ok

BODY = prompt()
HOP = {
    "Connection": "keep-alive, X-Private, Te",
    "Keep-Alive": "timeout=5",
    "Proxy-Connection": "keep-alive",
    "TE": "trailers",
    "Trailer": "X-Sum",
    "X-Private": "secret",
}


def test_hop_by_hop_fields_do_not_reach_the_engine(stage: Stage, lane: str) -> None:
    """PS#836: RFC 9110 §7.6.1; what Connection names goes with it."""
    headers = (*HOP.items(), ("X-Kept", "yes"))
    assert stage.ask(lane, BODY, headers=headers).status == 200
    names = stage.engine.seen[0].head.names
    for name in (*HOP, "upgrade", "transfer-encoding"):
        assert name.lower() not in names or name == "Connection", names
    connection = stage.engine.seen[0].header("connection")
    assert connection in (None, "keep-alive"), connection
    assert stage.engine.seen[0].header("x-kept") == "yes"
    assert names.count("host") == names.count("content-length") == 1


def test_connection_cannot_name_away_what_the_gateway_needs(stage: Stage, lane: str) -> None:
    """`Connection: host, content-length, authorization` must not unframe or disarm the request."""
    headers = (("Connection", "close, host, content-length, content-type"),)
    assert stage.ask(lane, BODY, headers=headers).status == 200
    seen = stage.engine.seen[0]
    assert seen.body == BODY and seen.header("host")


def test_hop_by_hop_fields_do_not_reach_the_client(stage: Stage, lane: str) -> None:
    """PS#998: the engine's connection is none of the client's business."""
    stage.engine.script = scripts.sends(
        b"HTTP/1.1 200 OK\r\nconnection: keep-alive, x-private\r\nkeep-alive: timeout=5\r\n"
        b"x-private: secret\r\nproxy-connection: x\r\nupgrade: h2c\r\nx-kept: yes\r\n"
        b"content-length: 2\r\n\r\nok"
    )
    reply = stage.ask(lane, BODY)
    assert reply.body == b"ok" and reply.header("x-kept") == "yes"
    for name in ("keep-alive", "x-private", "proxy-connection", "upgrade"):
        assert name not in reply.head.names
    assert reply.header("connection") in (None, "keep-alive")


def test_server_and_date_stand_once(stage: Stage, lane: str) -> None:
    """PS#880: `Server` and `Date` were doubled."""
    stage.engine.script = scripts.says(
        headers=(("Server", "uvicorn"), ("Date", "Mon, 01 Jan 2024 00:00:00 GMT"))
    )
    reply = stage.ask(lane, BODY)
    assert len(reply.head.all("server")) == 1, reply.head.raw
    assert len(reply.head.all("date")) == 1, reply.head.raw


def test_fields_of_the_engine_reach_the_client_in_order(stage: Stage, lane: str) -> None:
    """Repeated fields (Set-Cookie) stay separate and in order; unknown ones pass."""
    headers = (("Set-Cookie", "a=1"), ("X-Odd", "  inner  space "), ("Set-Cookie", "b=2"))
    stage.engine.script = scripts.says(headers=headers)
    reply = stage.ask(lane, BODY)
    assert reply.head.all("set-cookie") == [b"a=1", b"b=2"]
    assert reply.header("x-odd") == "inner  space"


def test_gzip_reply_passes_as_it_is(stage: Stage, lane: str) -> None:
    """LL#25624: the body was decoded and Content-Encoding and Content-Length left behind."""
    packed = gzip.compress(b'{"id":"1"}' * 1000)
    stage.engine.script = scripts.says(packed, headers=(("Content-Encoding", "gzip"),))
    reply = stage.ask(lane, BODY, headers=(("Accept-Encoding", "gzip"),))
    assert reply.header("content-encoding") == "gzip"
    assert reply.body == packed and gzip.decompress(reply.body).startswith(b'{"id"')
    assert stage.engine.seen[0].header("accept-encoding") == "gzip"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Foo", "bar"),
        ("X-Session-Id", "s-1"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("Authorization", "Bearer sk-user"),
        ("Anthropic-Version", "2023-06-01"),
        ("User-Agent", "OpenAI/Python"),
        ("Cookie", "a=1; b=2"),
    ],
)
def test_client_fields_reach_the_engine(stage: Stage, lane: str, name: str, value: str) -> None:
    """SG#3070, AX#2122: custom headers were not forwarded."""
    assert stage.ask(lane, BODY, headers=((name, value),)).status == 200
    assert stage.engine.seen[0].head.all(name) == [value.encode()]


def test_request_id_is_fresh_upstream_and_echoed_to_the_client(stage: Stage, lane: str) -> None:
    """AX#2527: request id and traceparent are two things, and neither is made from the other."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = (("X-Request-Id", "mine-1"), ("traceparent", trace))
    replies = [stage.ask(lane, BODY, headers=headers) for _ in range(2)]
    sent = [seen.header("x-request-id") for seen in stage.engine.seen]
    assert all(sent) and len(set(sent)) == 2 and "mine-1" not in sent, sent
    assert [reply.header("x-request-id") for reply in replies] == ["mine-1"] * 2
    assert [seen.header("traceparent") for seen in stage.engine.seen] == [trace] * 2


SETTING = Conf(
    location='proxy_set_header Authorization "Bearer ours"; proxy_set_header X-Secret "";'
    " proxy_hide_header X-Internal; add_header X-Added yes always;"
)


def test_set_header_overwrites_the_clients(play: Play, lane: str) -> None:
    """EA#2410: the configured header was appended to the client's own."""
    stage = play(SETTING)
    headers = (("Authorization", "Bearer a"), ("AUTHORIZATION", "Bearer b"), ("X-Secret", "x"))
    assert stage.ask(lane, BODY, headers=headers).status == 200
    assert stage.engine.seen[0].head.all("authorization") == [b"Bearer ours"]


def test_set_header_to_nothing_removes_it(play: Play, lane: str) -> None:
    """SG#27048: a user's credential must not leak to the engine where the operator says so."""
    stage = play(SETTING)
    assert stage.ask(lane, BODY, headers=(("X-Secret", "x"), ("x-secret", "y"))).status == 200
    assert stage.engine.seen[0].head.all("x-secret") == []


def test_hidden_and_added_reply_headers(play: Play, lane: str) -> None:
    stage = play(SETTING)
    stage.engine.script = scripts.says(headers=(("X-Internal", "1"), ("X-Shown", "2")))
    reply = stage.ask(lane, BODY)
    assert reply.header("x-internal") is None and reply.header("x-shown") == "2"
    assert reply.head.all("x-added") == [b"yes"]


def test_host_is_the_engines_own_by_default(stage: Stage, lane: str) -> None:
    """R#159/R#158: the client's Host went to a name-based server that did not know it."""
    assert stage.ask(lane, BODY).status == 200
    assert stage.engine.seen[0].head.all("host") == [stage.engine.address.encode()]


PORTRAIT = Conf(location="proxy_set_header Host engine.internal:8000;")


def test_host_is_what_the_operator_says(play: Play, lane: str) -> None:
    stage = play(PORTRAIT)
    assert stage.ask(lane, BODY).status == 200
    assert stage.engine.seen[0].head.all("host") == [b"engine.internal:8000"]


def test_missing_content_type_is_the_engines_business(stage: Stage, lane: str) -> None:
    """SMG#1857: no Content-Type: the engine decides (415 or sniffing), not the gateway."""
    stage.engine.script = scripts.says(b'{"error":"x"}', 415)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    client = stage.client(lane)
    client.send(head + BODY)
    reply = client.reply()
    assert (reply.status, reply.body) == (415, b'{"error":"x"}')
    assert stage.engine.seen[0].header("content-type") is None


@pytest.mark.parametrize(
    "status", [400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 501, 503, 504]
)
def test_engine_errors_pass_unchanged(stage: Stage, lane: str, status: int) -> None:
    """AX#2594: errors were wrapped in another error object."""
    body = b'{"object":"error","message":"it \\"broke\\"","type":"X","code":%d}' % status
    stage.engine.script = scripts.says(body, status, (("Retry-After", "7"), ("X-Why", "z")))
    reply = stage.ask(lane, BODY)
    assert (reply.status, reply.body) == (status, body)
    assert reply.header("retry-after") == "7" and reply.header("x-why") == "z"


def test_upgrade_is_refused_cleanly(stage: Stage, lane: str) -> None:
    """A websocket upgrade must end in an answer, not in two parties that speak past each other."""
    headers = (
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Version", "13"),
    )
    client = stage.client(lane)
    reply = client.ask(method="GET", target="/v1/realtime", headers=headers)
    assert 400 <= reply.status < 600 and reply.status != 502
    assert "upgrade" not in reply.head.names or reply.status == 426
    assert not any(seen.header("upgrade") for seen in stage.engine.seen)


def test_h2c_upgrade_offer_is_ignored(stage: Stage, lane: str) -> None:
    """curl --http2 offers h2c: the offer may be ignored, the request must be served."""
    headers = (
        ("Connection", "Upgrade, HTTP2-Settings"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAMAAABkAAQCAAAAAAIAAAAA"),
    )
    assert stage.ask(lane, BODY, headers=headers).status == 200
    seen = stage.engine.seen[0]
    assert seen.header("upgrade") is None and seen.header("http2-settings") is None


def test_credentials_are_in_no_log(own: Play, lane: str) -> None:
    """EA#2508: a credential stood in the debug log."""
    stage = own(Conf(top="error_log stderr debug;"))
    lines = len(stage.gateway.access())
    body = prompt(note="body-s3cret")
    headers = (
        ("Authorization", "Bearer sk-s3cret"),
        ("X-Api-Key", "key-s3cret"),
        ("Cookie", "s3cret"),
    )
    assert stage.ask(lane, body, headers=headers).status == 200
    stage.engine.script = scripts.resets
    assert stage.ask(lane, body, headers=headers).status == 502
    stage.engine.script = answer_ok
    stage.wait_log(lines + 2)
    assert "s3cret" not in stage.gateway.log()
    assert "s3cret" not in stage.gateway.access_file.read_text()
