"""The quick way to count a request counts exactly what the way for all of them does."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from math import nextafter
from typing import Any

import pytest

from gateway.context import Context
from gateway.stats import Statistics, tally

Counted = list[tuple[Any, ...]]
SLOS = ("ttft=60s tpot=60s e2el=60s", "ttft=1ms", "tpot=1ms", "e2el=1ms", "")
PATHS = (
    "/v1/chat/completions?stream", "/v1/chat/completions?stream&silent", "/v1/completions?plain",
    "/v1/completions?stream&uncounted", "/v1/messages?missing", "/v1/embeddings?plain",
    "/v1/responses?away", "/v1/completions?busy", "/v1/completions?broken",
)  # fmt: skip


def answer(method: bytes, target: bytes, body: bytes) -> tuple[int, dict[str, str], bytes]:
    if b"stream" in target:
        texts = [] if b"silent" in target else ["a", "b", "c"]
        events: list[dict[str, Any]] = [{"choices": [{"delta": {"content": t}}]} for t in texts]
        if b"uncounted" not in target:
            events.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}})
        data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        return 200, {"content-type": "text/event-stream"}, data + b"data: [DONE]\n\n"
    for word, status in ((b"missing", 404), (b"away", 302), (b"busy", 503), (b"broken", 500)):
        if word in target:
            return status, {"content-type": "application/json"}, b'{"error":{}}'
    usage = b'{"id":"x","usage":{"prompt_tokens":3,"completion_tokens":1}}'
    return 200, {"content-type": "application/json"}, usage


async def contexts(gateway: Any, engine: Any, lane: str) -> list[Context]:
    """Requests of many kinds as they were when they had been recorded."""
    made = await engine(answer)
    groups = "".join(
        f"upstream u{at} {{ server {made.address}; health_check off; {'slo ' * bool(slo)}{slo}"
        f"{';' * bool(slo)} }}"
        for at, slo in enumerate(SLOS)
    )
    places = "".join(
        f"location /{at}/ {{ proxy_pass http://u{at}/; express {lane}; "
        f"policy_header X-KVGate-TTFT-SLO; }}"
        for at in range(len(SLOS))
    )
    running = await gateway(
        f"{groups} server {{ listen 127.0.0.1:0; proxy_next_upstream off; "
        f"{places} location /page/ {{ error_page 500 503 = /4/v1/completions; "
        "proxy_pass http://u4/; } location /v1 { return 410 gone; } }"
    )
    seen: list[Context] = []
    record = running.app.pipeline.record
    running.app.pipeline.record = lambda ctx: (record(ctx), seen.append(ctx))
    body = {"model": "m", "prompt": "x"}
    for at in range(len(SLOS)):
        for path in PATHS:
            await running.client.post(f"/{at}{path}", json=body)
        wish = {"x-kvgate-ttft-slo": "1ms"}
        await running.client.post(f"/{at}{PATHS[0]}", json=body, headers=wish)
        await running.client.get(f"/{at}/v1/chat/completions")
    for path in ("/page/v1/completions?busy", "/page/v1/completions?broken", "/v1/completions"):
        await running.client.post(path, json=body)
    return seen


@pytest.mark.parametrize("lane", ["on", "off"])
async def test_both_ways_count_the_same(
    gateway: Callable[[str], Awaitable[object]],
    engine: Callable[..., Awaitable[object]],
    lane: str,
) -> None:
    quick: Counted = []
    counts = tally(lambda *told: quick.append(told))
    seen = await contexts(gateway, engine, lane)
    assert len(seen) == len(SLOS) * (len(PATHS) + 2) + 3
    plain, words = 0, set()
    for ctx in seen:
        said = ctx.end, ctx.word, ctx.broken
        words.add(ctx.word)
        ctx.end, ctx.word, ctx.broken = "", "", ()
        slow: Counted = []
        Statistics.any_request(ctx, lambda *told, to=slow: to.append(told))
        assert (ctx.end, ctx.word, ctx.broken) == said
        ctx.end, ctx.word, ctx.broken = "", "", ()
        if counts.plain(ctx):
            plain += 1
            assert (ctx.end, ctx.word, ctx.broken) == said
            assert quick.pop() == slow[0]
        else:
            assert (ctx.end, ctx.word, quick) == ("", "", [])
    assert 10 <= plain < len(seen) - 10
    assert words >= {"", "good", "error"}


async def test_a_bound_that_is_met_is_kept(
    gateway: Callable[[str], Awaitable[object]], engine: Callable[..., Awaitable[object]]
) -> None:
    counts = tally(lambda *told: None)
    seen = await contexts(gateway, engine, "on")
    stream = next(c for c in seen if c.leg is not None and c.leg.chunks and not c.policy)
    whole = next(c for c in seen if c.word == "good" and c.leg is not None and not c.leg.sse)
    for ctx, levels in ((stream, (0, 1, 2)), (whole, (2,))):
        assert ctx.leg is not None and ctx.group is not None
        times = ctx.leg.times(ctx.request.t0, ctx.t_end - ctx.request.t_head, True)
        plan = ctx.plan.reply_plans[ctx.group.name]
        for level in range(3):
            for bound_s in (0.0, times[level], nextafter(max(times[level], 1e-9), 0.0)):
                bounds = [0.0, 0.0, 0.0]
                bounds[level] = max(bound_s, 0.0)
                plan.count_as(plan.series, *bounds)
                kept = level not in levels or not bounds[level] or times[level] <= bounds[level]
                assert counts.plain(ctx) == kept
