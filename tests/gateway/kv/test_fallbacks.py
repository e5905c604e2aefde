"""What stands in for a tokenizer that is not here: in order, each openly, none silently."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from harness import model_folder
from harness.kv import LANES, chat, receipt, settled, until

Reply = tuple[int, dict[str, str], bytes]
JSON = {"content-type": "application/json"}
IDS = list(range(100, 148))


def engine_that(**says: Any) -> Callable[[bytes, bytes, bytes], Reply]:
    """An engine by what it answers to `render` and `tokenize`: a status, or a document."""

    def answer(method: bytes, target: bytes, body: bytes) -> Reply:
        kind = next((k for k in ("render", "tokenize") if target.decode().endswith(k)), "")
        if target == b"/v1/models":
            cards = [{"id": "sim", "root": "no/such-model", "parent": None, "max_model_len": 64}]
            return 200, JSON, json.dumps({"data": cards}).encode()
        if not kind:
            return 200, JSON, b'{"usage":{"prompt_tokens":48}}'
        said = says.get(kind, 404)
        if isinstance(said, int):
            return said, JSON, b'{"error":{"message":"no"}}'
        return 200, JSON, json.dumps(said).encode()

    return answer


def asked(one: Any, end: str) -> list[Any]:
    return [a for a in one.asked if a.target.decode().endswith(end)]


@pytest.mark.parametrize("lane", LANES)
async def test_render_where_the_engine_offers_it(engine, serve, lane: str) -> None:  # type: ignore[no-untyped-def]
    one = await engine(engine_that(render={"token_ids": IDS, "features": None}))
    gw = await serve([one], lane=lane)
    await settled(gw, "engine")
    seen = receipt(await gw.client.post("/v1/chat/completions", json=chat("x")))
    assert (seen["policy"], seen["prompt"], seen["prompt-tokens"]) == ("kv", "render", "48")
    assert not asked(one, "tokenize")


@pytest.mark.parametrize("status", [403, 404, 405, 501])
async def test_a_render_that_is_not_offered_is_not_asked_for_again(  # type: ignore[no-untyped-def]
    engine, serve, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvgate")
    one = await engine(engine_that(render=status, tokenize={"tokens": IDS, "count": len(IDS)}))
    gw = await serve([one])
    await settled(gw, "engine")
    for _ in range(3):
        seen = receipt(await gw.client.post("/v1/chat/completions", json=chat("x")))
        assert (seen["policy"], seen["prompt"]) == ("kv", "tokenize")
    asked_for = len(asked(one, "render")), len(asked(one, "tokenize"))
    assert asked_for == (1, 4)  # one of them by the gateway itself, at start
    said = [text for text in caplog.messages if "does not offer" in text]
    assert len(said) == 1 and f"({status})" in said[0]
    page = (await gw.admin.get("/metrics")).text
    assert 'kvgate_prompts_total{source="tokenize"} 3.0' in page


async def test_bytes_where_no_engine_tokenises(  # type: ignore[no-untyped-def]
    engine, serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvgate")
    one = await engine(engine_that(render=403, tokenize=404))
    gw = await serve([one])
    await settled(gw, "bytes")
    seen = receipt(await gw.client.post("/v1/chat/completions", json=chat("word " * 40)))
    assert (seen["policy"], seen["prompt"], seen["trust"]) == ("kv", "bytes", "approximate")
    page = (await gw.admin.get("/metrics")).text
    assert 'kvgate_prompt_fallbacks_total{reason="no_tokenizer"} 1.0' in page
    assert 'kvgate_tokenizer_state{state="bytes",upstream="sim"} 1.0' in page
    shown = await gw.status()
    assert "exact routing is off" in shown["tokenizer"]["why"]
    assert shown["engines"][0]["kv"]["trust"] != "exact"
    assert len([text for text in caplog.messages if "exact routing is off" in text]) == 1


async def test_the_gateways_own_calls_carry_its_key(sim, serve, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    one = sim("no/such", "--served-model-name", "sim", "--api-key", "s3cret")
    monkeypatch.setenv("ENGINE_KEY", "s3cret")
    gw = await serve([one], upstream="api_key env:ENGINE_KEY;")
    await settled(gw, "engine")
    key = {"authorization": "Bearer s3cret"}
    reply = await gw.client.post("/v1/chat/completions", json=chat("a"), headers=key)
    assert (reply.status_code, receipt(reply)["prompt"]) == (200, "tokenize")
    # Without one of its own it has the client's, which is good for the engine or is not.
    gw = await serve([one], upstream="tokenizer remote;")
    await settled(gw, "engine")
    reply = await gw.client.post("/v1/chat/completions", json=chat("a"), headers=key)
    assert (reply.status_code, receipt(reply)["prompt"]) == (200, "tokenize")
    reply = await gw.client.post("/v1/chat/completions", json=chat("a"))
    assert reply.status_code == 401


async def test_a_key_that_the_location_drops_is_not_shown_to_engines(engine, serve) -> None:  # type: ignore[no-untyped-def]
    one = await engine(engine_that(render=403, tokenize={"tokens": IDS, "count": len(IDS)}))
    gw = await serve([one], location="proxy_set_header Authorization '';")
    await settled(gw, "engine")
    headers = {"authorization": "Bearer for-the-gateway"}
    reply = await gw.client.post("/v1/chat/completions", json=chat("a"), headers=headers)
    assert receipt(reply)["prompt"] == "tokenize"
    assert all(b"authorization" not in asked.headers for asked in one.asked)


async def test_a_request_that_the_engine_refuses_gets_the_engines_error(sim, serve) -> None:  # type: ignore[no-untyped-def]
    one = sim("no/such", "--served-model-name", "sim")
    gw = await serve([one])
    await settled(gw, "engine")
    for bad in ([], [{"role": "nobody", "content": "x"}], [{"role": "user", "content": 7}]):
        body = {"model": "sim", "messages": bad}
        reply = await gw.client.post("/v1/chat/completions", json=body)
        status, there = one.call("POST", "/v1/chat/completions", body)
        assert (reply.status_code, reply.json()) == (status, there) and status == 400
        seen = receipt(reply)
        assert (seen["policy"], seen["prompt"]) == ("least_conn", "refused")


@pytest.mark.parametrize("lane", LANES)
async def test_a_template_that_raises_is_the_engines_to_tell(  # type: ignore[no-untyped-def]
    sim, serve, tmp_path, lane: str
) -> None:
    strict = model_folder.write(tmp_path / "m", model_folder.STRICT + model_folder.TEMPLATE)
    one = sim("--tokenizer", strict)
    gw = await serve([one], upstream=f"tokenizer {strict};", lane=lane)
    await settled(gw, "local")
    body = {"model": "sim", "messages": [{"role": "assistant", "content": "x"}]}
    reply = await gw.client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400 and "user first" in reply.json()["error"]["message"]
    assert receipt(reply)["prompt"] == "refused"


async def test_an_engine_that_does_not_answer_costs_its_deadline_only(  # type: ignore[no-untyped-def]
    sim, serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.kv.engine_tokens.TIMEOUT_S", 0.2)
    one = sim("no/such", "--served-model-name", "sim")
    gw = await serve([one])
    await settled(gw, "engine")
    one.faults(["silent:path=/tokenize"])
    reply = await gw.client.post("/v1/chat/completions", json=chat("a b c " * 9))
    seen = receipt(reply)
    assert (reply.status_code, seen["prompt"], seen["policy"]) == (200, "bytes", "kv")


@pytest.mark.parametrize("lane", LANES)
async def test_a_client_that_leaves_while_its_prompt_is_asked_for(  # type: ignore[no-untyped-def]
    sim, serve, lane: str
) -> None:
    one = sim("no/such", "--served-model-name", "sim")
    gw = await serve([one], lane=lane)
    await settled(gw, "engine")
    one.faults(["silent:path=/tokenize"])
    with pytest.raises(httpx.ReadTimeout):
        await gw.client.post("/v1/chat/completions", json=chat("a"), timeout=0.3)
    await until(lambda: gw.app.pipeline.gatehouse.active == 0, "the request to be over")
    one.faults([])
    assert one.state()["last_request"] is None  # the request itself never came
    assert gw.running.lines()[-1]["termination"] == "CQ"


@pytest.mark.parametrize("lane", LANES)
async def test_ids_that_the_client_sends_are_taken_as_they_are(sim, serve, lane: str) -> None:  # type: ignore[no-untyped-def]
    """Nobody has to be asked for them, though the gateway has no tokenizer."""
    one = sim("no/such", "--served-model-name", "sim", "--record")
    gw = await serve([one], lane=lane)
    await settled(gw, "engine")
    for prompt, alone in ((list(range(40, 75)), 35), ([list(range(9)), [1, 2]], 9)):
        body = {"model": "sim", "prompt": prompt, "max_tokens": 2}
        reply = await gw.client.post("/v1/completions", json=body)
        seen = receipt(reply)
        assert (reply.status_code, seen["prompt"], seen["prompt-tokens"]) == (
            200, "given", str(alone),
        )  # fmt: skip
    # Cut short by the engine: what is left of them is the engine's to tell.
    body = {"model": "sim", "prompt": [1] * 40, "max_tokens": 2, "truncate_prompt_tokens": 20}
    reply = await gw.client.post("/v1/completions", json=body)
    assert receipt(reply)["prompt"] != "given"
    for odd in ([], [[]], ["a", 3], [1, "a"], [1.5], [-1]):
        body = {"model": "sim", "prompt": odd, "max_tokens": 2}
        reply = await gw.client.post("/v1/completions", json=body)
        there = one.call("POST", "/v1/completions", body)[0]
        assert reply.status_code == there, odd
