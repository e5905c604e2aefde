"""The access line's quick way says exactly what the variables' own functions say."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from gateway.conf.model import Template, Var
from gateway.context import Context
from gateway.site import values
from gateway.site.variables import compile_log

# $msec and the two wall clocks differ from call to call, not from way to way.
NAMES = [name for name in values.TABLE if name not in ("msec", "time_local", "time_iso8601")]
ODD = 'caf\u00e9 "quoted" back\\slash'
STREAM = b"".join(
    b"data: " + json.dumps(event).encode() + b"\n\n"
    for event in (
        {"id": "c-1", "choices": [{"delta": {"content": "a"}}]},
        {"id": "c-1", "choices": [{"delta": {"content": "b"}}]},
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
    )
)


def answer(method: bytes, target: bytes, body: bytes) -> tuple[int, dict[str, str], bytes]:
    if b"stream" in target:
        return 200, {"content-type": "text/event-stream"}, STREAM
    if b"missing" in target:
        return 404, {"content-type": "application/json"}, b'{"error":{}}'
    usage = b'{"id":"x","usage":{"prompt_tokens":3,"completion_tokens":1}}'
    return 200, {"content-type": "application/json"}, usage


async def contexts(gateway: object, engine: object) -> list[Context]:
    """Requests of many kinds, as they were recorded."""
    made = await engine(answer)  # type: ignore[operator]
    running = await gateway(  # type: ignore[operator]
        f"upstream u {{ server {made.address}; server 127.0.0.1:1; health_check off; }}"
        "server { listen 127.0.0.1:0; location / { proxy_pass http://u; }"
        "location = /gone { return 410 gone; } }"
    )
    seen: list[Context] = []
    record = running.app.pipeline.record
    running.app.pipeline.record = lambda ctx: (seen.append(ctx), record(ctx))
    body = {"model": ODD, "messages": []}
    for path in ("/v1/chat/completions?stream", "/v1/missing?a=%22", "/v1/x", "/gone", "/docs"):
        for lane_headers in ({}, {"x-request-id": ODD.encode("utf-8")}):
            await running.client.post(path, json=body, headers=lane_headers)
    await running.client.get("/v1/x", headers={"user-agent": "agent\tx"})
    return seen


@pytest.mark.parametrize("escape", ["default", "json", "none"])
async def test_both_ways_write_the_same(
    gateway: Callable[[str], Awaitable[object]],
    engine: Callable[..., Awaitable[object]],
    escape: str,
) -> None:
    seen = await contexts(gateway, engine)
    assert len(seen) == 11
    parts: list[str | Var] = []
    for name in [*NAMES, "http_x_request_id", "http_user_agent", "http_absent"]:
        parts += [f" {name}=", Var(name)]
    template = Template(tuple(parts))
    quick, plain = compile_log(template, escape), compile_log(template, escape, native=False)
    for ctx in seen:
        assert quick(ctx) == plain(ctx)
    assert any(len(ctx.attempts) == 2 for ctx in seen)
    assert any(ctx.leg is not None and ctx.leg.sse for ctx in seen)


async def test_a_json_line_is_json_and_keeps_what_is_utf8(
    gateway: Callable[[str], Awaitable[object]], engine: Callable[..., Awaitable[object]]
) -> None:
    seen = await contexts(gateway, engine)
    template = Template(('{"agent":"', Var("http_x_request_id"), '","uri":"', Var("uri"), '"}'))
    for ctx in seen:
        json.loads(compile_log(template, "json")(ctx))
