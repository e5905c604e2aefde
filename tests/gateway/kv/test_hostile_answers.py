"""What engines say when the gateway asks them: of any shape, of any size, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from harness.kv import LANES, chat, receipt, settled

from gateway.kv import engine_tokens

URL = "/v1/chat/completions"
KIND = {"content-type": "application/json"}
REPLY = b'{"id":"c","choices":[],"usage":{"prompt_tokens":9}}'


@pytest.fixture
async def asked(engine: Any, serve: Any) -> Any:
    """`await asked(answers, lane=)`: a gateway that asks an engine, which answers by path."""

    async def start(answers: dict[str, bytes], lane: str = "express") -> Any:
        def answer(method: bytes, target: bytes, body: bytes) -> tuple[int, Any, bytes]:
            path = target.decode()
            if path in made_up:
                return 200, KIND, made_up[path]
            return (200, KIND, REPLY) if path == URL else (404, KIND, b"{}")

        made_up: dict[str, bytes] = {"/tokenize": b'{"tokens":[1,2,3]}'}
        made = await serve([await engine(answer)], upstream="tokenizer remote;", lane=lane)
        await settled(made, "engine")
        made.app.pipeline.tokens.by_upstream["sim"].engine._lacking.clear()
        made_up.update(answers)
        return made

    return start


@pytest.mark.parametrize("lane", LANES)
async def test_an_answer_that_drips_costs_its_deadline_only(  # type: ignore[no-untyped-def]
    serve, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, the last one never."""
    monkeypatch.setattr(engine_tokens, "TIMEOUT_S", 0.5)
    dripping = False

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            body = REPLY if URL.encode() in head else b'{"tokens":[1,2,3]}'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
            writer.write(b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body))
            if dripping and b"/tokenize" in head:
                for byte in body * 10:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.1)
            writer.write(body)
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    one = SimpleNamespace(address=f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    gw = await serve([one], upstream="tokenizer remote;", lane=lane)
    await settled(gw, "engine")
    dripping = True
    async with asyncio.timeout(10):
        reply = await gw.client.post(URL, json=chat("the of and"))
    assert (reply.status_code, receipt(reply)["prompt"]) == (200, "bytes")
    server.close()


def tokens(value: Any) -> bytes:
    return json.dumps({"tokens": value}).encode()


ODD = [
    b"", b"[]", b"7", b"null", b"{}", b"[1]", b"{", tokens(None), tokens("ids"), tokens({"a": 1}),
    tokens([-1]), tokens([2**40]), tokens([1.5]), tokens(["a"]), tokens([None]), tokens([[1]]),
    tokens([True]), b'{"tokens":' + b"[" * 5000 + b"]" * 5000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("answer", ODD)
async def test_token_ids_of_any_shape(  # type: ignore[no-untyped-def]
    asked, answer: bytes, lane: str, caplog: pytest.LogCaptureFixture
) -> None:
    gw = await asked({"/tokenize": answer}, lane)
    reply = await gw.client.post(URL, json=chat("the of and"))
    assert (reply.status_code, reply.content) == (200, REPLY)
    assert receipt(reply)["prompt"] in ("bytes", "tokenize")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "features",
    [7, [], "x", {"mm_placeholders": 7}, {"mm_placeholders": {"image": 7}},
     {"mm_placeholders": {"image": [7, None, {"offset": "x"}, {"offset": -5}]}},
     {"mm_placeholders": {"image": [{"offset": 10**30}]}}],
)  # fmt: skip
async def test_a_render_of_any_shape(  # type: ignore[no-untyped-def]
    asked, features: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rendered = orjson.dumps({"token_ids": list(range(99))})[:-1]
    body = rendered + b',"features":' + json.dumps(features).encode() + b"}"
    gw = await asked({URL + "/render": body})
    reply = await gw.client.post(URL, json=chat("the of and"))
    assert (reply.status_code, receipt(reply)["policy"]) == (200, "kv")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("rendered", [b"[7]", b"[null]", b"[]", b"[[]]", b'[{"token_ids":[1]}]'])
async def test_a_render_of_several_prompts_of_any_shape(asked, rendered: bytes) -> None:  # type: ignore[no-untyped-def]
    gw = await asked({"/v1/completions/render": rendered, "/v1/completions": REPLY})
    body = {"model": "sim", "prompt": ["a", "b"], "max_tokens": 2}
    reply = await gw.client.post("/v1/completions", json=body)
    assert (reply.status_code, reply.content) == (200, REPLY)


@pytest.mark.parametrize(
    "card",
    [{"id": 7}, {"id": "sim", "max_model_len": "long"}, {"id": "sim", "max_model_len": -1},
     {"id": "sim", "max_model_len": 10**30}, {"id": "x" * 100_000}, {"root": []}],
)  # fmt: skip
@pytest.mark.parametrize(
    "metrics",
    [b"\xff\xfe", b'vllm:cache_config_info{kv_cache_size_tokens="' + b"9" * 5000 + b'"} 1.0',
     b'vllm:cache_config_info{kv_cache_size_tokens="9' + b"9" * 40 + b'"} 1.0',
     b'vllm:cache_config_info{num_gpu_blocks="x",block_size="16"} 1.0'],
)  # fmt: skip
async def test_facts_of_any_shape(asked, card: Any, metrics: bytes) -> None:  # type: ignore[no-untyped-def]
    models = json.dumps({"object": "list", "data": [card, card]}).encode()
    gw = await asked({"/v1/models": models, "/metrics": metrics})
    app = gw.app
    (engine,) = app.table.groups["sim"].engines
    facts = await app.inquiry._ask(app.table.groups["sim"], engine)
    if facts is not None:
        app.inquiry._tell("sim", engine.address, facts)
    reply = await gw.client.post(URL, json=chat("the of and"))
    assert (reply.status_code, receipt(reply)["policy"]) == (200, "kv")
