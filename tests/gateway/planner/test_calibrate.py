"""`kvgate calibrate` against a simulated engine and against engines that are none.

How long things take is the machine's; what is held here is what is asked of an engine, and that
the answer is a line the configuration understands.
"""

from __future__ import annotations

import asyncio
import json
import re

import httpx
import pytest

from engines.sim.process import SimEngine
from gateway.cli.program import main
from gateway.planner.calibrate import ANSWER_TOKENS, Engine, Failed, Limits, measure, together


def test_an_engine_is_measured_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--profile", "h100-8b-tp1", "--max-model-len", "3000")
    with SimEngine(*arguments, thread=True) as engine:
        assert main(["calibrate", engine.url, "--json", "--requests", "60"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests"] <= 60
    # Prompts and answers that do not fit in are not asked for.
    assert [tokens for tokens, _, _ in found["prefills"]] == [64, 128, 256, 512, 1024, 2048]
    # Those that never ran all at once, on a busy machine, do not count.
    asked = {(1, 88), (4, 352), (16, 1408), (4, 4192), (8, 8384)}
    assert {(answers, kv) for answers, kv, _ in found["decodes"]} <= asked
    assert re.fullmatch(r"profile neutral( \w+=[0-9.e-]+){8};", found["line"])
    # On a busy machine one of them may come out as nothing.
    fit = found["fit"]
    assert min(fit["b"], fit["base"]) >= 0 and fit["b"] + fit["base"] > 0


def answering(seen: list[dict[str, object]]) -> httpx.MockTransport:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 600}]})
        body = json.loads(request.content)
        seen.append(body)
        if not body["stream"]:
            return httpx.Response(200, json={"choices": [{"text": "x"}]})
        chunk = f"data: {json.dumps({'choices': [{'text': 'x'}]})}\n\n"
        return httpx.Response(200, text=chunk * ANSWER_TOKENS + "data: [DONE]\n\n")

    return httpx.MockTransport(handle)


def test_prompts_are_distinct_bounded_and_no_more_than_allowed() -> None:
    async def run(limits: Limits) -> list[dict[str, object]]:
        seen: list[dict[str, object]] = []
        transport = answering(seen)
        async with httpx.AsyncClient(transport=transport, base_url="http://e/") as client:
            await measure(Engine(client, limits, 1))
        return seen

    seen = asyncio.run(run(Limits()))
    prompts = [tuple(body["prompt"]) for body in seen]
    assert len(set(prompts)) == len(prompts)
    assert max(map(len, prompts)) == 512
    assert all(body["ignore_eos"] and body["model"] == "m" for body in seen)
    assert len(asyncio.run(run(Limits(requests=10)))) <= 10
    assert len(asyncio.run(run(Limits(seconds=0.0)))) == 1


def test_only_the_time_in_which_all_answers_run_counts() -> None:
    # 48 tokens in 48 chunks, 10 ms apart; the second answer begins later and stalls at its end.
    first = [i * 0.01 for i in range(48)]
    second = [0.105 + i * 0.01 for i in range(47)] + [9.0]
    assert together([first, second]) == pytest.approx(10.0)
    # Two tokens in every chunk.
    assert together([[i * 0.02 for i in range(24)]]) == pytest.approx(10.0)
    assert together([first, [1.0]]) == 0.0
    assert together([first, [5.0, 6.0]]) == 0.0


def test_what_is_no_engine_or_refuses_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "http://127.0.0.1:1"]) == 1
    assert "kvgate: http://127.0.0.1:1: " in capsys.readouterr().err
    assert main(["calibrate", "http://127.0.0.1:1", "--time", "soon"]) == 2

    async def run(response: httpx.Response) -> None:
        transport = httpx.MockTransport(lambda request: response)
        async with httpx.AsyncClient(transport=transport, base_url="http://e/") as client:
            await measure(Engine(client, Limits(), 1))

    refusal = httpx.Response(401, json={"error": {"message": "no key"}})
    with pytest.raises(Failed, match="answered 401") as failed:
        asyncio.run(run(refusal))
    assert failed.value.hint == "no key"
