"""Both lanes are one gateway: the same request gives the same reply and the same bytes upstream."""

from __future__ import annotations

import re

import pytest
from harness import scripts
from harness.client import chunked, prompt, request_bytes
from harness.stage import LANES, Conf, Play, Stage
from harness.upstream import Script, answer_ok
from harness.wire import Reply

JSON = (("Content-Type", "application/json"),)
REQUESTS: dict[str, bytes] = {
    "plain": request_bytes(prompt()),
    "stream": request_bytes(prompt(True)),
    "chat": request_bytes(prompt(), target="/v1/chat/completions"),
    "query": request_bytes(prompt(), target="/v1/completions?a=b"),
    "http_1_0": request_bytes(prompt(), version="1.0"),
    "close": request_bytes(prompt(), headers=(("Connection", "close"),)),
    "chunked": request_bytes(headers=(*JSON, ("Transfer-Encoding", "chunked")), framed=False)
    + chunked(prompt()),
    "models": request_bytes(method="GET", target="/v1/models"),
    "head": request_bytes(method="HEAD", target="/v1/models", framed=False),
    "options": request_bytes(method="OPTIONS", target="/v1/models", framed=False),
    "not_found": request_bytes(prompt(), target="/nowhere"),
    "closed": request_bytes(b"{}", target="/sleep"),
    "bad_json": request_bytes(b"{"),
    "no_model": request_bytes(b'{"prompt":"x"}'),
    "unknown_model": request_bytes(prompt(model="nobody")),
    "empty_body": request_bytes(b""),
    "malformed": b"GET / HTTP/1.1\r\nbad line\r\n\r\n",
    "expect": request_bytes(prompt(), headers=(("Expect", "100-continue"),)),
    "request_id": request_bytes(prompt(), headers=(("X-Request-Id", "mine"),)),
    "forbidden": request_bytes(b'{"model":"m1","kv_transfer_params":{"a":1}}'),
    "upload": request_bytes(
        b"x" * 5000,
        target="/v1/audio/transcriptions",
        headers=(("Content-Type", "multipart/form-data"),),
    ),
}
ENGINES: dict[str, Script] = {
    "ok": answer_ok,
    "stream": scripts.streams([scripts.event("a"), scripts.event("b")]),
    "cut_stream": scripts.streams([scripts.event("a")], done=False, then="fin"),
    "error": scripts.says(b'{"error":"x"}', 422, (("X-Why", "y"),)),
    "no_content": scripts.sends(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "dies": scripts.closes,
    "junk": scripts.sends(b"junk\r\n\r\n", then="fin"),
    "gzip": scripts.says(b"\x1f\x8b...", headers=(("Content-Encoding", "gzip"),)),
}
VARYING = re.compile(rb"(?im)^(date|x-request-id): .*\r\n")
HEX_ID = re.compile(rb"[0-9a-f]{32}")


def outcome(stage: Stage, lane: str, data: bytes) -> tuple[object, ...]:
    for engine in stage.engines:
        engine.seen.clear()
    client = stage.client(lane)
    client.send(data)
    reply: Reply = client.reply(data.split(b" ")[0].decode())
    upstream = [
        (VARYING.sub(b"", seen.head.raw), seen.body) for e in stage.engines for seen in e.seen
    ]
    return (
        VARYING.sub(b"", reply.head.raw),
        HEX_ID.sub(b"ID", reply.body),
        reply.framing,
        len(reply.interim),
        upstream,
    )


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_lanes_give_equal_results(play: Play, engine: str) -> None:
    """Status, headers, body, framing, and the bytes that the engine gets."""
    stage = play(Conf())
    for name, data in REQUESTS.items():
        stage.engine.script = ENGINES[engine]
        express, starlette = (outcome(stage, lane, data) for lane in LANES)
        assert express == starlette, name


def test_lanes_are_really_two(play: Play) -> None:
    """The parametrisation tests something: the access log names different lanes."""
    stage = play(Conf())
    lines = len(stage.gateway.access())
    for lane in LANES:
        assert stage.ask(lane, prompt()).status == 200
    assert [entry["lane"] for entry in stage.wait_log(lines + 2)[-2:]] == list(LANES)
