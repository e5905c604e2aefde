"""A pair of engines that has met once does not greet again, so slowness says nothing of it."""

from __future__ import annotations

from engines.vllm.handoff import Peer
from gateway.disagg.pairs import Handing

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
