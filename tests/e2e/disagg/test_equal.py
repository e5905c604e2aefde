"""A hundred requests through a pair of engines are answered as by a single engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.disagg import asks, front
from e2e.disagg import pair as pairs
from e2e.disagg.front import Front
from e2e.disagg.pair import KV_TOKEN_BYTES, Pair, Prompts
from e2e.disagg.replies import Reply, ask, hundred
from e2e.fleet import KIND
from harness import waiting

LANES = ("express", "starlette")


@pytest.fixture(scope="module")
def through(pair: Pair, folder: Path) -> Iterator[Front]:
    with front.running(pair, folder / "equal") as made:
        yield made


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def expected(pair: Pair, http: httpx.Client) -> dict[str, Reply]:
    return {name: ask(http, pair.single.base_url, asked) for name, asked in asks.hundred("equal")}


@pytest.mark.parametrize("lane", LANES)
def test_a_hundred_requests_are_answered_as_by_a_single_engine(
    lane: str, pair: Pair, through: Front, http: httpx.Client, expected: dict[str, Reply]
) -> None:
    refused = {name for name, reply in expected.items() if reply.status != 200}
    assert refused <= ({"echo", "two texts"} if KIND == "sim" else set())
    for engine in (pair.prefill, pair.decode):
        pairs.post(engine, "/reset_prefix_cache", {})
    before = pairs.prompts(pair.decode)
    found = hundred(http, through.lanes[lane], "equal", expected)
    assert found.differing == {}
    pair.wait_idle()
    now = pairs.prompts(pair.decode) - before
    print(f"e2e: {lane}: {found.handed} tokens handed over, {found.alone} not, by {found.why}")
    assert found.handed > 4 * found.alone > 0
    if KIND == "vllm":  # simulated engines do not tell every prompt's tokens
        assert now.moved == found.handed
        assert now.computed + now.cached == found.alone


def test_only_the_missing_blocks_of_a_conversation_move(
    pair: Pair, through: Front, http: httpx.Client
) -> None:
    for engine in (pair.prefill, pair.decode):
        pairs.post(engine, "/reset_prefix_cache", {})
    first = asks.completion("conversation", 20 * pairs.BLOCK)
    whole = ask(http, through.lanes["express"], first)
    pair.wait_idle()
    bytes_before = pair.decode.counter("vllm:nixl_bytes_transferred_sum")
    before = pairs.prompts(pair.decode)
    content: Any = whole.content
    prompt = [*first[1]["prompt"], *content["choices"][0]["token_ids"]]  # type: ignore[misc]
    prompt += asks.ids("and then", 100)
    second = asks.completion("", 1, prompt=prompt)
    got = ask(http, through.lanes["express"], second)
    assert not ask(http, pair.single.base_url, second).differs(got)
    assert "x-kvgate-prefill" in got.headers, got.headers
    pair.wait_idle()
    held = 20 * pairs.BLOCK  # the decode engine has them in whole blocks
    missing = len(prompt) - held
    waiting.until(lambda: pairs.prompts(pair.decode) != before, "the request to be counted", 10)
    assert pairs.prompts(pair.decode) - before == Prompts(missing, computed=0, cached=held)
    sent = pair.decode.counter("vllm:nixl_bytes_transferred_sum") - bytes_before
    assert sent == -(-missing // pairs.BLOCK) * pairs.BLOCK * KV_TOKEN_BYTES
