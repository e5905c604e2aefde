"""The same over NixlPushConnector, where the prefill engine writes and both legs start at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
    # No connection is kept: an engine that stood still closes those that were idle, unread.
    rules = Rules(upstream="kv_connector push; keepalive_requests 1;")
    with front.running(push_pair, folder / "push", rules) as made:
        yield made


def late(engine: Engine) -> float:
    """Requests that wait for blocks from elsewhere."""
    return engine.counter("vllm:num_requests_waiting_by_reason", reason="deferred")


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


@pytest.mark.parametrize("left", [False, True])
def test_blocks_that_are_named_after_their_lease_are_written_by_a_second_prefill(
    push_pair: Pair, left: bool
) -> None:
    """Without the gateway, what it mends: a decode engine that comes too late is told nothing and
    waits, and it keeps the blocks of a request that is left meanwhile."""
    p, d, name = push_pair.prefill, push_pair.decode, f"too late {left}"
    path, body = asks.completion(name, 300)
    raw = json.dumps(body).encode()
    named = {"content-type": "application/json", "x-request-id": name.replace(" ", "-")}
    with httpx.Client(timeout=60) as http, ThreadPoolExecutor(1) as pool:
        right = http.post(push_pair.single.base_url + path, content=raw, headers=named).json()
        first = handoff.prefill_body(path.encode(), raw)
        reply = http.post(p.base_url + path, content=first, headers=named)
        handed = handoff.read(reply.content, -1, -1)
        assert handed is not None
        waiting.until(lambda: pairs.usage(p) == 0, "the lease to end", 2 * pairs.LEASE_S)
        second = handoff.decode_body(raw, 1, handed.peer.params(named["x-request-id"]))
        answer = pool.submit(
            http.post, d.base_url + path, content=second, headers=named, timeout=5 if left else 60
        )
        waiting.until(lambda: late(d) == 1, "the decode engine to wait", 5)
        if left:
            with pytest.raises(httpx.ReadTimeout):
                answer.result()
        assert ask(http, d.base_url, asks.completion("meanwhile", 40)).status == 200
        assert pairs.usage(d) > 0 and answer.done() is left
        assert http.post(p.base_url + path, content=first, headers=named).status_code == 200
        if not left:
            assert answer.result().json()["choices"] == right["choices"]
    push_pair.wait_idle(pairs.LEASE_S / 2)


@pytest.mark.parametrize("lane", ["express", "starlette"])
def test_a_decode_engine_that_stood_still_for_a_lease_is_written_the_blocks(
    lane: str, push_pair: Pair, through: Front
) -> None:
    p, d = push_pair.prefill, push_pair.decode
    asked = asks.completion(f"stands still, {lane}", 500)
    before, again = pairs.prompts(d), through.metric("kvgate_prefills_asked_again_total")
    with httpx.Client(timeout=120) as http, ThreadPoolExecutor(1) as pool:
        right = ask(http, push_pair.single.base_url, asked)
        pairs.freeze(d)
        try:
            answer = pool.submit(ask, http, through.lanes[lane], asked)
            waiting.until(lambda: pairs.usage(p) > 0, "the prefill", 30)
            waiting.until(lambda: pairs.usage(p) == 0, "its lease to end", 3 * pairs.LEASE_S)
        finally:
            pairs.thaw(d)
        got = answer.result()
    assert not right.differs(got)
    assert "x-kvgate-prefill" in got.headers
    assert through.metric("kvgate_prefills_asked_again_total") > again
    waiting.until(lambda: pairs.prompts(d) != before, "the request to be counted", 10)
    assert pairs.prompts(d) - before == Prompts(moved=500, computed=0, cached=0)
    through.wait_handing()
