"""Completions: forms of a prompt, choices, shapes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from engines.sim import tokens
from engines.sim.process import SimEngine


def post(engine: SimEngine, **body: Any) -> httpx.Response:
    asked = {"model": "m", "temperature": 0, "max_tokens": 3, **body}
    return httpx.post(engine.url + "/v1/completions", json=asked, timeout=10)


def texts(reply: httpx.Response) -> list[str]:
    return [c["text"] for c in reply.json()["choices"]]


def test_every_form_of_a_prompt_gives_the_same_text(engine: SimEngine) -> None:
    ids = tokens.encode("over the water")
    one = texts(post(engine, prompt="over the water"))
    assert len(one) == 1
    assert texts(post(engine, prompt=ids)) == one
    assert texts(post(engine, prompt=["over the water", "go"]))[:1] == one
    assert texts(post(engine, prompt=[ids, ids])) == one * 2


def test_choices_are_numbered_over_prompts_and_n(engine: SimEngine) -> None:
    body = post(engine, prompt=["a", "b c d"], n=2, temperature=1).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    counts = [len(tokens.encode(p)) for p in ("a", "b c d")]
    assert body["usage"]["prompt_tokens"] == sum(counts)
    assert body["usage"]["completion_tokens"] == 12


def test_a_whole_reply_has_vllms_fields_in_its_order(engine: SimEngine) -> None:
    body = post(engine, prompt="x").json()
    assert list(body) == ["id", "object", "created", "model", "choices", "service_tier",
                          "system_fingerprint", "usage", "kv_transfer_params",
                          "ec_transfer_params", "metrics"]
    assert body["id"].startswith("cmpl-") and body["object"] == "text_completion"
    assert list(body["choices"][0]) == [
        "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids",
        "prompt_logprobs", "prompt_token_ids", "routed_experts"]


def test_a_stream_has_vllms_chunks(engine: SimEngine) -> None:
    reply = post(engine, prompt="x", stream=True, stream_options={"include_usage": True})
    *chunks, done = [e.removeprefix("data: ") for e in reply.text[:-2].split("\n\n")]
    assert done == "[DONE]"
    values = [json.loads(c) for c in chunks]
    assert [list(v) for v in values[:-1]] == [["id", "object", "created", "model", "choices"]] * 3
    assert list(values[0]["choices"][0]) == ["index", "text", "logprobs", "finish_reason",
                                             "stop_reason", "prompt_token_ids", "token_ids"]
    assert [v["choices"][0]["finish_reason"] for v in values[:-1]] == [None, None, "length"]
    assert values[-1]["usage"]["completion_tokens"] == 3
    assert "".join(v["choices"][0]["text"] for v in values[:-1]) == texts(
        post(engine, prompt="x"))[0]


def test_a_completion_resumed_from_its_text_goes_on_alike(engine: SimEngine) -> None:
    whole = texts(post(engine, prompt="tell me", max_tokens=5, ignore_eos=True))[0]
    cut = texts(post(engine, prompt="tell me", max_tokens=2, ignore_eos=True))[0]
    rest = texts(post(engine, prompt="tell me" + cut, max_tokens=3, ignore_eos=True))[0]
    assert cut + rest == whole


def test_the_default_length_is_sixteen_tokens(engine: SimEngine) -> None:
    body = post(engine, prompt="x", max_tokens=None, ignore_eos=True).json()
    assert body["usage"]["completion_tokens"] == 16


def test_logprobs_follow_the_text(engine: SimEngine) -> None:
    choice = post(engine, prompt="x", logprobs=1).json()["choices"][0]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["text_offset"][0] == 0


@pytest.mark.parametrize("prompt", [None, "", [], [[]], ["a", 1], {"a": 1}, [1.5], [-1], [True]])
def test_other_prompts_are_refused(engine: SimEngine, prompt: Any) -> None:
    reply = post(engine, prompt=prompt)
    assert reply.status_code == 400 and reply.json()["error"]["code"] == 400


def test_echo_is_refused_politely(engine: SimEngine) -> None:
    reply = post(engine, prompt="x", echo=True)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "echo"
