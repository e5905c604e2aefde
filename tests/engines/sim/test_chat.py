"""Chat replies and chunks field by field, as vLLM 0.32 writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from engines.sim.process import SimEngine

ASK: dict[str, Any] = {
    "model": "m", "messages": [{"role": "user", "content": "How are you?"}], "temperature": 0}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def post(engine: SimEngine, body: Any, path: str = "/v1/chat/completions",
         **headers: str) -> httpx.Response:
    return httpx.post(engine.url + path, json=body, headers=headers, timeout=10)


def events(text: str) -> list[str]:
    assert text.endswith("\n\n")
    parts = text[:-2].split("\n\n")
    assert all(p.startswith("data: ") for p in parts)
    return [p.removeprefix("data: ") for p in parts]


def test_a_whole_reply_has_vllms_fields_in_its_order(engine: SimEngine) -> None:
    reply = post(engine, ASK, **{"x-request-id": "abc"})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["server"] == "uvicorn"
    body = json.loads(reply.text)
    assert list(body) == [
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint",
        "usage", "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params",
        "ec_transfer_params", "metrics"]
    assert body["id"] == "chatcmpl-abc" and body["object"] == "chat.completion"
    choice = body["choices"][0]
    assert list(choice) == ["index", "message", "logprobs", "finish_reason", "stop_reason",
                            "token_ids", "routed_experts"]
    assert list(choice["message"]) == ["role", "content", "refusal", "annotations", "audio",
                                       "function_call", "reasoning"]
    assert choice["finish_reason"] == "stop"
    assert len(choice["message"]["content"].split()) <= 5
    assert body["usage"]["completion_tokens"] == 6
    assert list(body["usage"]) == ["prompt_tokens", "total_tokens", "completion_tokens",
                                   "prompt_tokens_details", "completion_tokens_details"]


def test_a_stream_is_role_content_finish_done(engine: SimEngine) -> None:
    whole = post(engine, ASK).json()["choices"][0]["message"]["content"]
    reply = post(engine, {**ASK, "stream": True}, **{"x-request-id": "r1"})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["transfer-encoding"] == "chunked"
    *chunks, done = events(reply.text)
    assert done == "[DONE]"
    created = json.loads(chunks[0])["created"]
    head = (f'{{"id":"chatcmpl-r1","object":"chat.completion.chunk","created":{created},'
            '"model":"m","choices":[')
    assert chunks[0] == head + (
        '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        '"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}')
    middle = re.escape(head) + (
        r'\{"index":0,"delta":\{"content":"[^"]+"\},"logprobs":null,"finish_reason":null,'
        r'"token_ids":null\}\]\}')
    assert all(re.fullmatch(middle, c) for c in chunks[1:-1]) and len(chunks) == 7
    assert re.fullmatch(
        re.escape(head) + r'\{"index":0,"delta":\{"content":""\},"logprobs":null,'
        r'"finish_reason":"stop","stop_reason":null,"token_ids":null\}\],'
        r'"system_fingerprint":"vllm-0\.32\.0-[0-9a-f]{8}"\}', chunks[-1])
    text = "".join(json.loads(c)["choices"][0]["delta"]["content"] for c in chunks)
    assert text == whole


def test_usage_comes_only_when_asked_for_and_last(engine: SimEngine) -> None:
    body = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, done = events(post(engine, body).text)
    assert done == "[DONE]"
    assert "system_fingerprint" not in chunks[-1] and '"usage"' not in "".join(chunks)
    value = json.loads(usage)
    assert list(value) == ["id", "object", "created", "model", "choices", "usage",
                           "system_fingerprint"]
    assert value["choices"] == [] and value["usage"]["completion_tokens"] == 6
    details = value["usage"]["prompt_tokens_details"]
    assert list(details) == ["cached_tokens", "created_cache_tokens"]


def test_continuous_usage_is_in_every_chunk(engine: SimEngine) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _done = events(post(engine, {**ASK, "stream": True, "stream_options": options}).text)
    counts = [json.loads(c)["usage"]["completion_tokens"] for c in chunks]
    assert counts == [0, 1, 2, 3, 4, 5, 6, 6]


def test_choices_share_the_stream(engine: SimEngine) -> None:
    *chunks, _done = events(post(engine, {**ASK, "stream": True, "n": 3, "temperature": 1}).text)
    indexes = [json.loads(c)["choices"][0]["index"] for c in chunks]
    assert indexes[:3] == [0, 1, 2] and sorted(indexes) == [0] * 7 + [1] * 7 + [2] * 7


def test_sampled_choices_differ_and_follow_their_seed(engine: SimEngine) -> None:
    def said(seed: int) -> list[str]:
        body = post(engine, {**ASK, "n": 3, "temperature": 1, "seed": seed}).json()
        return [c["message"]["content"] for c in body["choices"]]
    assert len(set(said(5))) == 3
    assert said(5) == said(5) != said(6)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_length_ends_a_reply(engine: SimEngine, field: str) -> None:
    body = post(engine, {**ASK, field: 2}).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2


def test_ignore_eos_goes_on_to_max_tokens(engine: SimEngine) -> None:
    body = post(engine, {**ASK, "max_tokens": 30, "ignore_eos": True}).json()
    assert body["usage"]["completion_tokens"] == 30


def test_a_stop_string_ends_the_text_before_it(engine: SimEngine) -> None:
    words = post(engine, ASK).json()["choices"][0]["message"]["content"].split()
    for stream in (False, True):
        reply = post(engine, {**ASK, "stop": [words[2]], "stream": stream})
        if stream:
            deltas = [json.loads(c)["choices"][0] for c in events(reply.text)[:-1]]
            text, last = "".join(d["delta"]["content"] for d in deltas), deltas[-1]
        else:
            last = reply.json()["choices"][0]
            text = last["message"]["content"]
        assert text.split() == words[:2]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", words[2])


def test_a_continued_message_goes_on_as_it_would_have(sim: Callable[..., SimEngine]) -> None:
    here, there = sim("m", "--tokens", 12), sim("m", "--tokens", 12)
    whole = post(here, ASK).json()["choices"][0]["message"]["content"]
    cut = post(here, {**ASK, "max_tokens": 4}).json()["choices"][0]["message"]["content"]
    body = {**ASK, "messages": [*ASK["messages"], {"role": "assistant", "content": cut}],
            "continue_final_message": True, "add_generation_prompt": False}
    assert cut + post(there, body).json()["choices"][0]["message"]["content"] == whole


def test_token_ids_and_logprobs_on_request(engine: SimEngine) -> None:
    asked = {**ASK, "return_token_ids": True, "logprobs": True, "top_logprobs": 2}
    body = post(engine, asked).json()
    choice = body["choices"][0]
    assert [len(c["top_logprobs"]) for c in choice["logprobs"]["content"]] == [2] * 6
    assert len(choice["token_ids"]) == 6 == len(choice["logprobs"]["content"])
    assert len(body["prompt_token_ids"]) == body["usage"]["prompt_tokens"]
    reply = post(engine, {**ASK, "return_token_ids": True, "stream": True})
    chunks = [json.loads(c) for c in events(reply.text)[:-1]]
    assert chunks[0]["prompt_token_ids"] == body["prompt_token_ids"]
    ids = [t for c in chunks[1:] for t in c["choices"][0]["token_ids"]]
    assert ids == choice["token_ids"]


def test_reasoning_comes_first_in_its_own_field(sim: Callable[..., SimEngine]) -> None:
    engine = sim("m", "--tokens", 7, "--reasoning-tokens", 3)
    message = post(engine, ASK).json()["choices"][0]["message"]
    deltas = [json.loads(c)["choices"][0]["delta"]
              for c in events(post(engine, {**ASK, "stream": True}).text)[:-1]]
    assert [list(d) for d in deltas[1:]] == [["reasoning"]] * 3 + [["content"]] * 4
    assert "".join(d.get("reasoning", "") for d in deltas) == message["reasoning"]
    assert "".join(d.get("content", "") for d in deltas) == message["content"]


def test_a_required_tool_is_called(engine: SimEngine) -> None:
    client = openai.OpenAI(base_url=engine.url + "/v1", api_key="none")
    asked: Any = {**ASK, "tools": TOOLS, "tool_choice": "required"}
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    arguments = choice.message.tool_calls[0].function.arguments
    assert json.loads(arguments)["text"]
    chunks = [json.loads(c)["choices"][0]
              for c in events(post(engine, {**asked, "stream": True}).text)[:-1]]
    calls = [c["delta"]["tool_calls"][0] for c in chunks if "tool_calls" in c["delta"]]
    assert list(calls[0]) == ["id", "type", "index", "function"]
    assert calls[0]["function"] == {"name": "look"}
    assert "".join(c["function"]["arguments"] for c in calls[1:]) == arguments
    assert chunks[-1]["delta"] == {} and chunks[-1]["finish_reason"] == "tool_calls"


def test_the_openai_client_streams(engine: SimEngine) -> None:
    client = openai.OpenAI(base_url=engine.url + "/v1", api_key="none")
    stream = client.chat.completions.create(**{**ASK, "stream": True})  # type: ignore[arg-type]
    text = "".join(c.choices[0].delta.content or "" for c in stream)
    assert text == post(engine, ASK).json()["choices"][0]["message"]["content"]


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"messages": None}, 400, "messages"),
    ({"messages": "hi"}, 400, "messages"),
    ({"messages": [{"role": "bot", "content": "x"}]}, 400, "unknown message role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, 400, "unknown message role"),
    ({"messages": [{"role": {}, "content": "x"}]}, 400, "unknown message role"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "content must be"),
    ({"model": "other"}, 404, "The model `other` does not exist. Valid aliases: m."),
    ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
    ({"max_tokens": 1 << 20}, 400, "cannot be greater than max_model_len=32768"),
    ({"max_tokens": "5"}, 400, "valid integer"),
    ({"n": 0}, 400, "n must be at least 1"),
    ({"n": 2}, 400, "n must be 1 when using greedy sampling, got 2."),
    ({"temperature": -1}, 400, "temperature must be non-negative, got -1.0."),
    ({"top_p": 2}, 400, "top_p must be in (0, 1], got 2.0."),
    ({"max_tokens": 3, "min_tokens": 9}, 400, "less than or equal to max_tokens=3, got 9."),
    ({"messages": []}, 400, "empty conversation"),
    ({"stream": "yes"}, 400, "valid boolean"),
    ({"stream_options": {"include_usage": True}}, 400, "Stream options can only"),
    ({"stop": 5}, 400, "stop"),
    ({"tool_choice": "required"}, 400, "`tools` must be set"),
    ({"tools": TOOLS, "tool_choice": {"function": {"name": "no"}}}, 400, "does not match"),
    ({"cache_salt": ""}, 400, "cache_salt"),
    ({"continue_final_message": True, "add_generation_prompt": True}, 400, "Cannot set both"),
    ({"messages": [{"role": "user", "content": "1 2 3 " * 20_000}]}, 400, "maximum context"),
]


@pytest.mark.parametrize(("change", "status", "says"), BAD, ids=[b[2] for b in BAD])
def test_bad_requests_are_refused_in_vllms_shape(
    engine: SimEngine, change: dict[str, Any], status: int, says: str
) -> None:
    reply = post(engine, {**ASK, **change})
    error = reply.json()["error"]
    assert reply.status_code == status == error["code"]
    assert list(error) == ["message", "type", "param", "code"]
    assert says in error["message"] + str(error["param"])


def test_the_load_report_comes_with_whole_replies_when_asked_for(engine: SimEngine) -> None:
    reply = post(engine, ASK, **{"endpoint-load-metrics-format": "JSON"})
    kind, _, report = reply.headers["endpoint-load-metrics"].partition(" ")
    assert kind == "JSON"
    assert list(json.loads(report)["named_metrics"]) == [
        "num_requests_waiting", "kv_cache_usage_perc"]
    assert "endpoint-load-metrics" not in post(engine, ASK).headers


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff"])
def test_a_body_that_is_no_object_is_refused(engine: SimEngine, body: bytes) -> None:
    reply = httpx.post(engine.url + "/v1/chat/completions", content=body,
                       headers={"content-type": "application/json"})
    assert reply.status_code == 400 and reply.json()["error"]["code"] == 400


def test_another_content_type_is_refused(engine: SimEngine) -> None:
    reply = httpx.post(engine.url + "/v1/chat/completions", content=json.dumps(ASK),
                       headers={"content-type": "text/plain"})
    assert reply.status_code == 400 and "application/json" in reply.text


def test_a_rank_out_of_range_is_refused(engine: SimEngine) -> None:
    for rank in ("1", "-1", "x"):
        reply = post(engine, ASK, **{"x-data-parallel-rank": rank})
        assert reply.status_code == 400 and "out of range" in reply.text
    assert post(engine, ASK, **{"x-data-parallel-rank": "0"}).status_code == 200
