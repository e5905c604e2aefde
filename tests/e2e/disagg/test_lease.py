"""Nothing is read from a prefill engine whose lease has run out, whoever was late."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.disagg import asks, front
from e2e.disagg import pair as pairs
from e2e.disagg.front import Front
from e2e.disagg.pair import LEASE_S, Pair
from e2e.disagg.volley import Outcome, Volley, judge
from harness import waiting

pytestmark = pytest.mark.long
END_S = 120.0


@pytest.fixture(scope="module")
def through(pair: Pair, folder: Path) -> Iterator[Front]:
    with front.running(pair, folder / "lease") as made:
        yield made


@pytest.fixture(autouse=True)
def mended(pair: Pair, through: Front) -> Iterator[None]:
    through.wait_handing()
    yield
    for engine in (pair.prefill, pair.decode):
        pairs.thaw(engine)
    pair.wait_idle(LEASE_S + 30)


def expired(pair: Pair, before: float) -> None:
    waiting.until(
        lambda: pair.prefill.counter(pairs.EXPIRED) > before, "the lease to run out", LEASE_S + 20
    )


def poisoned(pair: Pair, outcomes: list[Outcome]) -> list[str]:
    """Prompts that the decode engine now answers wrongly by itself: it keeps what it has read."""
    found = []
    for path, body in (outcome.ask for outcome in outcomes):
        whole = {**body, "stream": False, "stream_options": None}
        mine, right = (
            pairs.post(engine, path, whole).json()["choices"][0]["token_ids"]
            for engine in (pair.decode, pair.single)
        )
        if mine != right:
            found.append(f"{mine}, right is {right}")
    return found


@pytest.mark.parametrize("lane", ["express", "starlette"])
def test_a_gateway_that_was_late_prefills_again(lane: str, pair: Pair, through: Front) -> None:
    """Stopped while the prefill runs: its answer lies in a socket for longer than it is good."""
    before = pair.prefill.counter(pairs.EXPIRED)
    pairs.freeze(pair.prefill)
    ask = asks.completion(f"late gateway {lane}", 20 * pairs.BLOCK)
    with Volley([through.lanes[lane]], [ask], end_s=END_S) as volley:
        waiting.until(
            lambda: through.metric("kvgate_engine_in_flight", engine=pair.prefill.address) == 1,
            "the prefill to be asked for",
            10,
        )
        through.gateway.signal_tree(signal.SIGSTOP)
        try:
            pairs.thaw(pair.prefill)
            expired(pair, before)
            pairs.overwrite(pair.prefill)
        finally:
            through.gateway.signal_tree(signal.SIGCONT)
    assert [(one.status, one.error) for one in volley.outcomes if not one.whole] == []
    judge(pair, volley.outcomes)
    assert not poisoned(pair, volley.outcomes)


@pytest.mark.parametrize("lane", ["express", "starlette"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "in one piece"])
def test_a_decode_engine_that_was_late_reads_nothing(
    stream: bool, lane: str, pair: Pair, through: Front
) -> None:
    """Stopped with the request in its socket, it would read what other prompts have written."""
    before = pair.prefill.counter(pairs.EXPIRED)
    pairs.freeze(pair.decode)
    fields = asks.USAGE if stream else {}
    ask = asks.completion(f"late decode {lane} {stream}", 20 * pairs.BLOCK, **fields)
    with Volley([through.lanes[lane]], [ask], end_s=END_S) as volley:
        expired(pair, before)
        pairs.overwrite(pair.prefill)
        pairs.thaw(pair.decode)
    judge(pair, volley.outcomes)
    assert not poisoned(pair, volley.outcomes)
