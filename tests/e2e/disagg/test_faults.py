"""Engines of a pair are killed, stopped and cut off under load.

Whatever happens, a reply that is whole has the single engine's tokens, a reply that was cut has the
first of them, everything ends within the location's timeouts, and the prefill engine holds no
block longer than its lease.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.disagg import asks, front
from e2e.disagg import pair as pairs
from e2e.disagg.asks import USAGE, Ask
from e2e.disagg.front import Front, Rules
from e2e.disagg.pair import LEASE_S, Pair
from e2e.disagg.volley import Outcome, Volley, judge
from harness import waiting

pytestmark = pytest.mark.long
FIRST_BYTE_S, READ_S = 8, 15  # a revived decode engine greets the other for seconds
END_S = 120.0  # far more than all timeouts of one request together
RULES = Rules(
    location=f"proxy_first_byte_timeout {FIRST_BYTE_S}s; proxy_read_timeout {READ_S}s;",
)


@pytest.fixture(scope="module")
def through(pair: Pair, folder: Path) -> Iterator[Front]:
    with front.running(pair, folder / "faults", RULES) as made:
        yield made


@pytest.fixture(autouse=True)
def mended(pair: Pair, through: Front) -> Iterator[None]:
    """Both engines live, hand over, are idle and have let go of everything, before and after."""
    through.wait_handing()
    yield
    for engine in (pair.prefill, pair.decode):
        pairs.thaw(engine)
        pairs.revive(engine)
    pair.wait_idle(LEASE_S + 30)


@pytest.fixture
def lanes(through: Front) -> list[str]:
    """Both: a request in each turn, so that an engine need not die twice."""
    return list(through.lanes.values())


def long_ones(of: str, count: int, length: int = 3000, **fields: object) -> list[Ask]:
    return [
        asks.completion(f"{of} {number}", length, **{"max_tokens": 8, **fields})
        for number in range(count)
    ]


def all_right(pair: Pair, outcomes: list[Outcome]) -> None:
    assert [(one.status, one.error) for one in outcomes if not one.whole] == []
    judge(pair, outcomes)


# ---- the prefill engine


def test_killed_before_the_prefill(pair: Pair, lanes: list[str]) -> None:
    pair.prefill.server.kill()
    with Volley(lanes, long_ones("p dead", 4, 500), end_s=END_S) as volley:
        pass
    all_right(pair, volley.outcomes)


def test_killed_during_the_prefill(pair: Pair, lanes: list[str]) -> None:
    with Volley(lanes, long_ones("p dying", 12), end_s=END_S) as volley:
        waiting.until(lambda: pair.prefill.running() > 0, "prefills to be under way", 30)
        pair.prefill.server.kill()
    all_right(pair, volley.outcomes)


def test_killed_after_the_prefill(pair: Pair, lanes: list[str]) -> None:
    pairs.freeze(pair.decode)
    with Volley(lanes, long_ones("p gone", 3, 1000), end_s=END_S) as volley:
        waiting.until(
            lambda: pairs.usage(pair.prefill) > 0 and pair.prefill.running() == 0,
            "prefilled blocks to wait for the decode engine",
            30,
        )
        pair.prefill.server.kill()
        pairs.thaw(pair.decode)
    all_right(pair, volley.outcomes)


def test_stopped_while_it_prefills(pair: Pair, lanes: list[str]) -> None:
    pairs.freeze(pair.prefill)
    with Volley(lanes, long_ones("p stopped", 3, 1000), end_s=END_S) as volley:
        pass
    all_right(pair, volley.outcomes)
    assert max(one.seconds for one in volley.outcomes) < 2 * FIRST_BYTE_S + 10


def test_stopped_before_its_blocks_were_read(pair: Pair, lanes: list[str]) -> None:
    """The side channel and the blocks behind it are out of reach, the HTTP side has answered."""
    pairs.freeze(pair.decode)
    with Volley(lanes, long_ones("p mute", 3, 1000), end_s=END_S) as volley:
        waiting.until(
            lambda: pairs.usage(pair.prefill) > 0 and pair.prefill.running() == 0,
            "prefilled blocks to wait for the decode engine",
            30,
        )
        pairs.freeze(pair.prefill)
        pairs.thaw(pair.decode)
        waiting.until(
            lambda: all(one.done for one in volley.outcomes), "an end without the blocks", END_S
        )
        pairs.thaw(pair.prefill)
    judge(pair, volley.outcomes)


# ---- the decode engine


def test_decode_killed_before_it_decodes(pair: Pair, lanes: list[str]) -> None:
    """There is no other: the requests fail, quickly, and nothing stays pinned past its lease."""
    pair.decode.server.kill()
    with Volley(lanes, long_ones("d dead", 3, 500), end_s=END_S) as volley:
        pass
    assert {one.status for one in volley.outcomes} <= {502, 503}
    judge(pair, volley.outcomes)


def test_decode_killed_while_it_decodes(pair: Pair, lanes: list[str]) -> None:
    streams = long_ones("d dying", 6, 500, max_tokens=1500, ignore_eos=True, **USAGE)
    with Volley(lanes, streams, end_s=END_S) as volley:
        waiting.until(lambda: volley.started() == 6, "all streams to have begun", 30)
        pair.decode.server.kill()
    assert not any(one.whole for one in volley.outcomes)
    judge(pair, volley.outcomes)


def test_decode_stopped_while_it_decodes(pair: Pair, lanes: list[str]) -> None:
    streams = long_ones("d stopped", 3, 500, max_tokens=1500, ignore_eos=True, **USAGE)
    with Volley(lanes, streams, end_s=END_S) as volley:
        waiting.until(lambda: volley.started() == 3, "all streams to have begun", 30)
        pairs.freeze(pair.decode)
    assert not any(one.whole for one in volley.outcomes)
    assert max(one.seconds for one in volley.outcomes) < 30 + READ_S
    judge(pair, volley.outcomes)
