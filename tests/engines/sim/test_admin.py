"""Endpoints that do not generate."""

from __future__ import annotations

import math
import struct
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from engines.sim import tokens
from engines.sim.process import SimEngine

Start = Callable[..., SimEngine]


def test_model_cards_have_vllms_fields(sim: Start) -> None:
    engine = sim("org/model", "--served-model-name", "a", "b", "--max-model-len", 4096)
    body = engine.call("GET", "/v1/models")[1]
    assert body["object"] == "list" and [c["id"] for c in body["data"]] == ["a", "b"]
    card = body["data"][0]
    assert list(card) == ["id", "object", "created", "owned_by", "root", "parent",
                          "max_model_len", "permission"]
    assert (card["root"], card["parent"], card["max_model_len"]) == ("org/model", None, 4096)
    assert list(card["permission"][0]) == [
        "id", "object", "created", "allow_create_engine", "allow_sampling", "allow_logprobs",
        "allow_search_indices", "allow_view", "allow_fine_tuning", "organization", "group",
        "is_blocking"]


def test_every_reply_varies_by_origin_as_vllms_do(engine: SimEngine) -> None:
    assert httpx.get(engine.url + "/version").headers["vary"] == "Origin"


def test_health_has_no_body(engine: SimEngine) -> None:
    for path in ("/health", "/ping"):
        reply = httpx.get(engine.url + path)
        assert (reply.status_code, reply.content) == (200, b"")
        assert reply.headers["content-length"] == "0" and "content-type" not in reply.headers


def test_tokenize_and_back(engine: SimEngine) -> None:
    prompt = "over the water — ünïcödé 123"
    body = engine.call("POST", "/tokenize", {"model": "m", "prompt": prompt,
                                             "return_token_strs": True})[1]
    assert list(body) == ["count", "max_model_len", "tokens", "token_strs"]
    assert body["tokens"] == tokens.encode(prompt) and body["count"] == len(body["tokens"])
    assert len(body["token_strs"]) == body["count"]
    back = engine.call("POST", "/detokenize", {"model": "m", "tokens": body["tokens"]})[1]
    assert back == {"prompt": prompt}


def test_tokenizing_a_chat_gives_the_prompts_ids(engine: SimEngine) -> None:
    chat: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "How are you"}]}
    ids = engine.call("POST", "/tokenize", chat)[1]["tokens"]
    asked = {**chat, "return_token_ids": True, "max_tokens": 1}
    assert engine.call("POST", "/v1/chat/completions", asked)[1]["prompt_token_ids"] == ids
    assert ids[-1] == tokens.ASSISTANT


@pytest.mark.parametrize(("path", "body", "status"), [
    ("/tokenize", {}, 400), ("/tokenize", {"prompt": "x", "model": "no"}, 404),
    ("/detokenize", {"tokens": "x"}, 400), ("/detokenize", {"tokens": [700]}, 400),
    ("/v1/embeddings", {}, 400), ("/v1/embeddings", {"input": ""}, 400),
    ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}, 400)])
def test_bad_requests(engine: SimEngine, path: str, body: dict[str, Any], status: int) -> None:
    assert engine.call("POST", path, body)[0] == status


@pytest.mark.parametrize("path", [
    "/v1/chat/completions/render", "/v1/completions/render", "/inference/v1/generate"])
def test_scale_out_is_disabled(engine: SimEngine, path: str) -> None:
    status, body = engine.call("POST", path, {})
    assert status == 403 and body["error"]["type"] == "PermissionDeniedError"


def test_embeddings_are_unit_vectors_of_their_input(engine: SimEngine) -> None:
    body = engine.call("POST", "/v1/embeddings", {"model": "m", "input": ["a", "b", "a"]})[1]
    vectors = [d["embedding"] for d in body["data"]]
    assert vectors[0] == vectors[2] != vectors[1]
    assert math.isclose(sum(v * v for v in vectors[0]), 1, rel_tol=1e-9)
    packed = engine.call("POST", "/v1/embeddings", {
        "model": "m", "input": "a", "encoding_format": "base64"})[1]["data"][0]["embedding"]
    assert struct.unpack("<64f", b64decode(packed)) == pytest.approx(vectors[0], rel=1e-6)


def test_reset_fails_while_blocks_are_in_use(sim: Start) -> None:
    engine = sim("m", "--tokens", 1000, "--profile", "fixed:20")
    with httpx.stream("POST", engine.url + "/v1/completions", json={
            "model": "m", "prompt": "x " * 50, "stream": True, "max_tokens": 900}):
        engine.wait_for(lambda s: s["running"] == 1)
        assert engine.call("POST", "/reset_prefix_cache")[1] == {"success": False}
    engine.wait_for(lambda s: s["running"] == 0)
    assert engine.call("POST", "/reset_prefix_cache")[1] == {"success": True}
    assert engine.state()["blocks_cached"] == 0


def test_load_is_tracked_on_request(sim: Start) -> None:
    for flag, expected in ((["--enable-server-load-tracking"], 1), ([], 0)):
        engine = sim("m", "--tokens", 1000, "--profile", "fixed:20", *flag)
        with httpx.stream("POST", engine.url + "/v1/completions", json={
                "model": "m", "prompt": "x", "stream": True, "max_tokens": 900}):
            engine.wait_for(lambda s: s["running"] == 1)
            assert engine.call("GET", "/load")[1] == {"server_load": expected}


def test_the_last_request_is_recorded(sim: Start) -> None:
    engine = sim("m", "--record")
    httpx.post(engine.url + "/v1/completions", json={"model": "m", "prompt": "x"},
               headers={"x-thing": "y"})
    last = engine.state()["last_request"]
    assert last["target"] == "/v1/completions" and ["x-thing", "y"] in last["headers"]
    assert last["body"] == '{"model":"m","prompt":"x"}'
    assert engine.state()["bodies"] >= 2


def test_request_ids_are_echoed_on_request_only(sim: Start) -> None:
    body = {"model": "m", "prompt": "x"}
    for flag, echoed in ((["--enable-request-id-headers"], "id-1"), ([], None)):
        reply = httpx.post(sim("m", *flag).url + "/v1/completions", json=body,
                           headers={"x-request-id": "id-1"})
        assert reply.headers.get("x-request-id") == echoed
        assert reply.json()["id"] == "cmpl-id-1"


def test_cached_tokens_are_whole_blocks_of_a_contiguous_prefix(engine: SimEngine) -> None:
    def cached(prompt: str, **more: Any) -> int:
        body = {"model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0, **more}
        usage = engine.call("POST", "/v1/completions", body)[1]["usage"]
        count: int = usage["prompt_tokens_details"]["cached_tokens"]
        return count
    prompt = "tell the story of the sea and the land " * 8
    size = len(tokens.encode(prompt))
    assert cached(prompt) == 0
    assert cached(prompt) == (size - 1) // 16 * 16
    assert cached("no " + prompt) == 0
    assert cached(prompt, cache_salt="s") == 0
    assert cached(prompt + "more " * 20) == size // 16 * 16
