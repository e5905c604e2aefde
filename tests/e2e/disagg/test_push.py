"""The same over NixlPushConnector, where the prefill engine writes and both legs start at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2e.disagg import asks, front
from e2e.disagg import pair as pairs
from e2e.disagg.front import Front, Rules
from e2e.disagg.pair import Pair, Setup
from e2e.disagg.replies import ask, differing
from harness import waiting

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def push_pair(pair: Pair, folder: Path) -> Iterator[Pair]:
    setup = Setup(mode="push", engine_id="writes")
    made = Pair(
        pairs.engine("prefill", setup, folder), pairs.engine("decode", setup, folder), pair.single
    )
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
        before = pairs.tokens(push_pair.decode, pairs.EXTERNAL)
        assert differing(http, through.lanes[lane], f"push {lane}", expected) == {}
    push_pair.wait_idle()
    moved = pairs.tokens(push_pair.decode, pairs.EXTERNAL) - before
    print(f"e2e: push, {moved:.0f} tokens moved")
    assert moved > 0


def test_only_the_missing_blocks_of_a_conversation_move(push_pair: Pair, through: Front) -> None:
    with httpx.Client(timeout=120) as http:
        first = asks.completion("conversation", 20 * pairs.BLOCK)
        ask(http, through.lanes["express"], first)
        push_pair.wait_idle()
        moved = pairs.tokens(push_pair.decode, pairs.EXTERNAL)
        computed = pairs.tokens(push_pair.decode, pairs.LOCAL)
        prompt = [*first[1]["prompt"], *asks.ids("and then", 100)]  # type: ignore[misc]
        second = asks.completion("", 1, prompt=prompt)
        got = ask(http, through.lanes["express"], second)
        assert not ask(http, push_pair.single.base_url, second).differs(got)
    waiting.until(
        lambda: pairs.tokens(push_pair.decode, pairs.EXTERNAL) > moved, "tokens to be moved", 10
    )
    assert pairs.tokens(push_pair.decode, pairs.EXTERNAL) - moved == 100
    assert pairs.tokens(push_pair.decode, pairs.LOCAL) == computed
