"""What the two engines are sent, and which requests one engine answers alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from harness import disagg, kv
from harness.disagg import Conf

Play = Callable[[Conf], Any]
EVERYTHING = {
    "min_tokens": 5, "stream": True, "stream_options": {"include_usage": True},
    "max_completion_tokens": 8, "logprobs": True, "top_logprobs": 5, "n": 1, "temperature": 0.0,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "tool_choice": "required", "response_format": {"type": "json_object"},
}  # fmt: skip


def seen(engine: Any) -> tuple[dict[str, str], bytes]:
    """Headers and body of the last request that an engine got."""
    last = engine.state()["last_request"]
    return dict(last["headers"]), last["body"].encode()


async def test_76_80_what_a_valid_request_asks_is_a_valid_prefill(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane))
    body = {"model": "sim", "messages": [{"role": "user", "content": disagg.TEXT}], **EVERYTHING}
    reply = await stage.post("/v1/chat/completions", body)
    assert reply.status_code == 200 and "tool_calls" in reply.text
    assert kv.receipt(reply)["prefill"] == stage.prefills[0].address
    asked = json.loads(seen(stage.prefills[0])[1])
    assert asked["max_completion_tokens"] == 1
    assert asked["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
    gone = {"min_tokens", "stream", "stream_options", "logprobs", "top_logprobs", "n", "max_tokens"}
    assert not gone & asked.keys()
    # What a chat template may see is the same.
    for name in ("messages", "tools", "tool_choice", "response_format", "temperature"):
        assert asked[name] == body[name]
    await stage.quiet()


async def test_81_min_tokens_is_dropped_and_none_is_set(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane))
    for more in ({}, {"min_tokens": 0}, {"min_tokens": 50, "max_tokens": 60}):
        reply = await stage.post("/v1/completions", disagg.completion(**more))
        assert reply.status_code == 200, reply.text
        assert b"min_tokens" not in seen(stage.prefills[0])[1]


async def test_85_bytes_of_the_body_survive_on_both_legs(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane))
    odd = b'"seed":1234567890,"temperature":1e-7,"a":1.0,"user":"\\u00e9\\ud83d\\ude42"'
    odd += b',"big":123456789012345678901234567890,"a":2'
    sent = b'{ "model":"sim", "prompt":"%b", %b, "max_tokens" : 4 }' % (disagg.TEXT.encode(), odd)
    headers = {"content-type": "application/json"}
    reply = await stage.client.post("/v1/completions", content=sent, headers=headers)
    assert reply.status_code == 200, reply.text
    assert kv.receipt(reply)["prefill"]
    first, second = seen(stage.prefills[0])[1], seen(stage.decodes[0])[1]
    assert odd in first and odd in second
    own = b'{"kv_transfer_params":'
    assert second.startswith(own) and second.endswith(b"," + sent[1:])
    assert first.endswith(b' "model":"sim", "prompt":"%b", %b }' % (disagg.TEXT.encode(), odd))


async def test_both_legs_have_one_id_and_the_clients_authorization(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane, location="proxy_set_header X-Trace $request_id;"))
    headers = {"authorization": "Bearer k", "traceparent": "00-1-2-03", "x-request-id": "mine"}
    reply = await stage.post("/v1/completions", disagg.completion(), headers=headers)
    assert reply.headers["x-request-id"] == "mine"
    first, second = seen(stage.prefills[0])[0], seen(stage.decodes[0])[0]
    assert first["x-request-id"] == second["x-request-id"] == first["x-trace"] != "mine"
    for got in (first, second):
        assert got["authorization"] == "Bearer k" and got["traceparent"] == "00-1-2-03"


@pytest.mark.parametrize(
    ("path", "more", "why"),
    [
        ("/v1/completions", {"n": 2, "temperature": 1}, "choices"),
        ("/v1/completions", {"prompt": ["a b c d" * 20, "e f g h" * 20]}, "prompts"),
        ("/v1/completions", {"prompt": [[1, 2, 3] * 9, [4, 5] * 9]}, "prompts"),
        ("/v1/completions", {"prompt_logprobs": 1}, "field"),
        ("/v1/completions", {"truncate_prompt_tokens": 20}, "field"),
        ("/v1/responses", {"truncation": "auto"}, "field"),
        ("/v1/embeddings", {"input": disagg.TEXT}, "endpoint"),
    ],
)
async def test_76e_what_two_engines_cannot_do_one_does(
    play: Play, lane: str, path: str, more: dict[str, Any], why: str
) -> None:
    stage = await play(Conf(lane=lane))
    body = {**disagg.body("/v1/completions" if "embed" in path else path), **more}
    reply = await stage.post(path, body)
    assert reply.status_code == 200, reply.text
    assert kv.receipt(reply)["disaggregate"] == why
    assert stage.prefills[0].state()["last_request"] is None
    await stage.quiet()


async def test_76f_a_prompt_under_a_block_stays(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane, tokenizer="remote"))
    await kv.settled(stage, "engine")
    met = set()
    for words in range(1, 24):
        body = disagg.completion(f"{words} " + "and " * words)
        reply = await asyncio.wait_for(stage.post("/v1/completions", body), 5)
        assert reply.status_code == 200
        right = await stage.right("/v1/completions", body)
        assert disagg.said(reply.json()) == disagg.said(right)
        tokens = int(kv.receipt(reply)["prompt-tokens"])
        assert tokens == right["usage"]["prompt_tokens"]
        assert ("prefill" in kv.receipt(reply)) == (tokens >= 16)
        met.add(tokens)
    assert {15, 16, 17} <= met
    await stage.quiet()


async def test_a_client_cannot_speak_of_hand_overs(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane, decode_args=("--fragile",)))
    for params in ({"do_remote_prefill": True}, {"do_remote_decode": True}):
        body = disagg.completion(kv_transfer_params=params)
        reply = await stage.post("/v1/completions", body)
        assert reply.status_code == 200
        right = await stage.right("/v1/completions", disagg.completion())
        assert disagg.said(reply.json()) == disagg.said(right)
    await stage.quiet()


async def test_the_policy_header_decides_where_it_is_allowed(play: Play, lane: str) -> None:
    allow = "policy_header X-KVGate-Disaggregate allow=auto,never;"
    stage = await play(Conf(lane=lane, location=allow))
    whys = []
    for header in ({}, {"x-kvgate-disaggregate": "never"}, {"x-kvgate-disaggregate": "always"}):
        reply = await stage.post("/v1/completions", disagg.completion(), headers=header)
        whys.append((reply.status_code, kv.receipt(reply).get("disaggregate")))
    assert whys == [(200, "forced"), (200, "never"), (400, None)]


async def test_82_cached_tokens_are_those_of_one_engine(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane))
    body, longer = disagg.completion(), disagg.completion(disagg.TEXT + "and then some more")
    for one in (body, body, longer):
        reply = await stage.post("/v1/completions", one)
        right = await stage.right("/v1/completions", one)
        assert kv.cached(reply) == (right["usage"]["prompt_tokens_details"]["cached_tokens"] or 0)
    assert kv.cached(reply) > 0
    await stage.quiet()
