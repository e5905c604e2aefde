"""Prompts and replies that are made to break the reading of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.kv import LANES, chat, receipt, settled

URL = "/v1/chat/completions"
CARD = {"id": "sim", "object": "model", "created": 1, "owned_by": "x", "max_model_len": 4_000_000}


@pytest.fixture
async def odd(engine: Any, serve: Any, model: Path) -> Any:
    """`await odd(usage, lane=)`: a gateway in front of an engine with this text for its usage."""

    async def start(usage: str = "{}", lane: str = "express") -> Any:
        def answer(method: bytes, target: bytes, body: bytes) -> tuple[int, Any, bytes]:
            kind = {"content-type": "application/json"}
            if target == b"/v1/models":
                return 200, kind, json.dumps({"object": "list", "data": [CARD]}).encode()
            if target != URL.encode():
                return 404, kind, b"{}"
            made.body = body
            return 200, kind, b'{"id":"c","choices":[],"usage":%b}' % usage.encode()

        one = await engine(answer)
        made = await serve([one], upstream=f"tokenizer {model};", lane=lane)
        await settled(made, "local")
        return made

    return start


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Callable[[], bool]:
    """Whether nothing has been logged as a fault."""
    caplog.set_level(logging.INFO, "kvgate")
    return lambda: not [r for r in caplog.records if r.exc_info or "fault" in r.getMessage()]


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    "value",
    ["1" + "0" * 30, "-5", '"many"', "1e308", "null", "true", "[1]", '{"cached_tokens":7}', "7"],
)
async def test_an_engine_that_lies_of_its_tokens(odd, quiet, value: str, lane: str) -> None:  # type: ignore[no-untyped-def]
    details = f'{{"cached_tokens":{value}}}'
    usage = f'{{"prompt_tokens":{value},"completion_tokens":{value},'
    usage += f'"prompt_tokens_details":{details}}}'
    gw = await odd(usage, lane)
    body = chat(" the of and to" * 20)
    for _ in range(6):
        reply = await gw.client.post(URL, json=body)
        assert reply.status_code == 200 and reply.text.endswith(f'"usage":{usage}}}')
        assert receipt(reply)["policy"] == "kv"
    page = (await gw.admin.get("/metrics")).text
    numbers = [float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line[0] != "#"]
    assert all(-1 <= number < 1e15 for number in numbers), "and none is no number"
    assert gw.app.pipeline.tokens.by_upstream["sim"].state == "local" and quiet()


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("text", [" the" * 260_000, "a" * (1 << 20), "<|start|>" * 120_000])
async def test_prompts_of_a_megabyte(odd, quiet, text: str, lane: str) -> None:  # type: ignore[no-untyped-def]
    gw = await odd(lane=lane)
    reply = await gw.client.post(URL, json=chat(text))
    assert (reply.status_code, receipt(reply)["prompt"]) == (200, "local")
    assert int(receipt(reply)["prompt-tokens"]) > len(text) // 10 and quiet()


def nested(depth: int) -> str:
    return '[{"type":"text","text":' * depth + '"x"' + "}]" * depth


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    "content",
    [nested(3), nested(50), "[" * 120 + "]" * 120, '{"a":' * 120 + "1" + "}" * 120, "[[],{},null]",
     '[{"type":"text"}]', '[{"type":7,"text":"x"}]', '[{"text":"x"}]', '"\\ud800"', "1e999", "{}"],
)
async def test_contents_of_any_shape_are_the_engines_to_judge(  # type: ignore[no-untyped-def]
    odd, quiet, content: str, lane: str
) -> None:
    gw = await odd(lane=lane)
    body = f'{{"model":"sim","messages":[{{"role":"user","content":{content}}}]}}'.encode()
    reply = await gw.client.post(URL, content=body, headers={"content-type": "application/json"})
    assert reply.status_code in (200, 400), reply.text
    if reply.status_code == 200:
        assert gw.body == body
    assert quiet()


@pytest.mark.parametrize("place", ["tools", "chat_template_kwargs", "tool_calls"])
async def test_deep_values_beside_the_content(odd, quiet, place: str) -> None:  # type: ignore[no-untyped-def]
    gw = await odd()
    deep: Any = "x"
    for _ in range(100):
        deep = {"properties": deep}
    body = chat("hi")
    function = {"name": "f", "parameters": deep, "arguments": deep}
    if place == "tools":
        body["tools"] = [{"type": "function", "function": function}]
    elif place == "tool_calls":
        calls = [{"id": "1", "type": "function", "function": function}]
        body["messages"].append({"role": "assistant", "content": None, "tool_calls": calls})
    else:
        body[place] = {"messages": deep, "tools": deep}
    reply = await gw.client.post(URL, json=body)
    assert reply.status_code == 200 and quiet()


@pytest.mark.parametrize("kind", ["messages", "parts", "tools"])
async def test_very_many_small_things_are_read_beside_the_event_loop(odd, quiet, kind: str) -> None:  # type: ignore[no-untyped-def]
    """Few bytes, but each of them has its work."""
    gw = await odd()
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for count, lane in ((40, "express"), (400, "starlette")):
        body = {
            "messages": {"messages": [{"role": "user", "content": "x"}] * count},
            "parts": {"messages": [
                {"role": "user", "content": [{"type": "text", "text": "x"}] * count}
            ]},
            "tools": {"tools": [tool] * count},
        }[kind]  # fmt: skip
        reply = await gw.client.post(URL, json={**chat("x"), **body})
        assert receipt(reply)["prompt"] == "local" and quiet()
        assert gw.running.lines()[-1]["lane"] == lane
