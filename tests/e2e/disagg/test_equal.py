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
from e2e.disagg.pair import Pair
from e2e.disagg.replies import Reply, ask, differing
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
    assert [name for name, reply in expected.items() if reply.status != 200] == []
    for engine in (pair.prefill, pair.decode):
        pairs.post(engine, "/reset_prefix_cache", {})
    before = [pairs.tokens(pair.decode, source) for source in (pairs.EXTERNAL, pairs.LOCAL)]
    assert differing(http, through.lanes[lane], "equal", expected) == {}
    pair.wait_idle()
    now = [pairs.tokens(pair.decode, source) for source in (pairs.EXTERNAL, pairs.LOCAL)]
    print(
        "e2e: decode engine, tokens",
        dict(
            zip(
                ("moved", "computed"),
                (int(a - b) for a, b in zip(now, before, strict=True)),
                strict=True,
            )
        ),
    )


def test_only_the_missing_blocks_of_a_conversation_move(
    pair: Pair, through: Front, http: httpx.Client
) -> None:
    first = asks.completion("conversation", 20 * pairs.BLOCK)
    whole = ask(http, through.lanes["express"], first)
    pair.wait_idle()
    bytes_before = pair.decode.counter("vllm:nixl_bytes_transferred_sum")
    moved = pairs.tokens(pair.decode, pairs.EXTERNAL)
    computed = pairs.tokens(pair.decode, pairs.LOCAL)
    content: Any = whole.content
    prompt = [*first[1]["prompt"], *content["choices"][0]["token_ids"]]  # type: ignore[misc]
    prompt += asks.ids("and then", 100)
    second = asks.completion("", 1, prompt=prompt)
    got = ask(http, through.lanes["express"], second)
    assert not ask(http, pair.single.base_url, second).differs(got)
    held = 20 * pairs.BLOCK  # what both engines have in whole blocks, at the least
    waiting.until(
        lambda: pairs.tokens(pair.decode, pairs.EXTERNAL) > moved, "tokens to be moved", 10
    )
    assert pairs.tokens(pair.decode, pairs.EXTERNAL) - moved == len(prompt) - held
    assert pairs.tokens(pair.decode, pairs.LOCAL) == computed
    blocks = -(-(len(prompt) - held) // pairs.BLOCK)
    sent = pair.decode.counter("vllm:nixl_bytes_transferred_sum") - bytes_before
    assert sent == blocks * pairs.BLOCK * 1024
