"""What a worker knows of an engine that hands over: whom it has met, what it is to compute."""

from __future__ import annotations

from engines.vllm.handoff import Peer
from gateway.disagg.pairs import FAR_TOKENS, Handing

D = "127.0.0.1:8001"


def peer(engine_id: str) -> Peer:
    return Peer(engine_id, "127.0.0.1", 5600, 1)


def test_a_pair_has_met_from_its_first_success_to_a_new_process() -> None:
    handing = Handing()
    assert not handing.met(D)
    handing.peer = peer("first")
    assert not handing.met(D)
    handing.succeeded(D)
    assert handing.met(D) and not handing.met("127.0.0.1:8002")
    handing.peer = peer("second")  # the prefill engine came back under another name
    assert not handing.met(D)
    handing.succeeded(D)
    handing.parted(D)
    assert not handing.met(D)


def test_a_failure_bars_the_pair_and_a_success_ends_that() -> None:
    handing = Handing()
    assert handing.failed(D, 100.0)
    assert handing.bars(D, 101.0) and not handing.bars("127.0.0.1:8002", 101.0)
    handing.succeeded(D)
    assert not handing.bars(D, 101.0)


def test_a_prefill_is_far_behind_when_much_is_computed_between_the_first_and_it() -> None:
    handing, legs = Handing(), [object() for _ in range(4)]
    for leg, tokens in zip(legs, (100_000, FAR_TOKENS, 0, 5), strict=True):
        handing.asked(leg, tokens)  # type: ignore[arg-type]
    assert [handing.far(leg) for leg in legs] == [False, False, False, True]  # type: ignore[arg-type]
    handing.answered(legs[0])  # type: ignore[arg-type]
    assert not handing.far(legs[3])  # type: ignore[arg-type]
