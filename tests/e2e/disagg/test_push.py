"""The same over NixlPushConnector, where the prefill engine writes and both legs start at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2e.disagg import asks, front
from e2e.disagg import pair as pairs
from e2e.disagg.front import Front, Rules
from e2e.disagg.pair import Pair, Prompts, Setup
from e2e.disagg.replies import ask, hundred
from e2e.fleet import Engine
from harness import waiting

from engines.vllm import handoff

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def push_pair(single: Engine, folder: Path) -> Iterator[Pair]:
    made = pairs.pair(Setup(mode="push", engine_id="writes"), single, folder)
    with pairs.running((made.prefill, made.decode)):
        yield made


@pytest.fixture(scope="module")
def through(push_pair: Pair, folder: Path) -> Iterator[Front]:
    with front.running(push_pair, folder / "push", Rules(upstream="kv_connector push;")) as made:
        yield made


@pytest.mark.parametrize("lane", ["express", "starlette"])
def test_a_hundred_requests_are_answered_as_by_a_single_engine(
    lane: str, push_pair: Pair, through: Front
) -> None:
    with httpx.Client(timeout=120) as http:
        expected = {
            name: ask(http, push_pair.single.base_url, asked)
            for name, asked in asks.hundred(f"push {lane}")
        }
        before = pairs.prompts(push_pair.decode)
        found = hundred(http, through.lanes[lane], f"push {lane}", expected)
    assert found.differing == {}
    push_pair.wait_idle()
    now = pairs.prompts(push_pair.decode) - before
    print(f"e2e: push, {lane}: {found.handed} tokens handed over, {found.alone} not")
    assert now.moved == found.handed > 4 * found.alone > 0
    assert now.computed + now.cached == found.alone


def test_only_the_missing_blocks_of_a_conversation_move(push_pair: Pair, through: Front) -> None:
    held, new = 20 * pairs.BLOCK, 100
    with httpx.Client(timeout=120) as http:
        first = asks.completion("conversation", held)
        ask(http, through.lanes["express"], first)
        push_pair.wait_idle()
        before = pairs.prompts(push_pair.decode)
        prompt = [*first[1]["prompt"], *asks.ids("and then", new)]  # type: ignore[misc]
        second = asks.completion("", 1, prompt=prompt)
        got = ask(http, through.lanes["express"], second)
        assert not ask(http, push_pair.single.base_url, second).differs(got)
    decode = push_pair.decode
    waiting.until(lambda: pairs.prompts(decode) != before, "the request to be counted", 10)
    assert pairs.prompts(decode) - before == Prompts(moved=new, computed=0, cached=held)


@pytest.mark.parametrize("path", [asks.COMPLETIONS, asks.RESPONSES])
def test_a_request_for_one_token_lets_the_blocks_go(push_pair: Pair, path: str) -> None:
    """As the gateway asks for them, and as it has them let go, without it."""
    make = asks.completion if path == asks.COMPLETIONS else asks.response
    body, route = json.dumps(make("to be let go", 300)[1]).encode(), path.encode()
    headers = {"content-type": "application/json", "x-request-id": "nobody"}
    name = handoff.naming(route, "nobody")
    with httpx.Client(timeout=60, headers=headers) as http:
        before = push_pair.prefill.counter(pairs.EXPIRED)
        first = handoff.prefill_body(route, body, name)
        reply = http.post(push_pair.prefill.base_url + path, content=first)
        handed = handoff.read(reply.content, -1, -1)
        assert handed is not None and pairs.usage(push_pair.prefill) > 0
        last = handoff.shortest_body(route, body, handed.raw, name)
        assert http.post(push_pair.decode.base_url + path, content=last).status_code == 200
    push_pair.wait_idle(pairs.LEASE_S / 2)
    assert push_pair.prefill.counter(pairs.EXPIRED) == before
