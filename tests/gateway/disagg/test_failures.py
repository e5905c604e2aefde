"""Engines that fail, refuse, fall silent or cannot reach each other: outcomes as configured, never
a wrong answer, nothing kept for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from harness import disagg, kv
from harness.disagg import Conf

from gateway.disagg.transfer import Transfer
from gateway.disagg.two_legs import TwoLegs

Play = Callable[[Conf], Any]
PATH = "/v1/completions"


async def right(stage: Any, reply: Any, body: dict[str, Any]) -> bool:
    """Whether an answer is what one engine would have said."""
    assert reply.status_code == 200, reply.text
    return bool(disagg.said(reply.json()) == disagg.said(await stage.right(PATH, body)))


@pytest.mark.parametrize(
    ("what", "why", "status"),
    [("retry", "forced", 200), ("local", "prefill_failed", 200), ("fail", None, 502)],
)
async def test_a_prefill_engine_that_is_gone(
    play: Play, lane: str, what: str, why: str | None, status: int
) -> None:
    stage = await play(Conf(2, lane=lane, upstream=f"on_prefill_error {what};"))
    for attempt in range(8):  # until the one that fails is the one that is chosen
        gone, other = stage.prefills[attempt % 2], stage.prefills[1 - attempt % 2]
        gone.faults(["reset"])
        other.faults([])
        body = disagg.fresh()
        reply = await stage.post(PATH, body)
        assert reply.status_code != 200 or await right(stage, reply, body)
        if stage.engine(gone).marks.fails:
            break
        assert kv.receipt(reply)["prefill"] == other.address
    assert reply.status_code == status
    assert why is None or kv.receipt(reply)["disaggregate"] == why
    assert what != "retry" or kv.receipt(reply)["prefill"] == other.address
    await stage.quiet()


async def test_every_prefill_engine_gone_is_a_local_prefill(play: Play, lane: str) -> None:
    stage = await play(Conf(2, lane=lane))
    for engine in stage.prefills:
        engine.faults(["status:code=500"])
    body = disagg.completion()
    reply = await stage.post(PATH, body)
    assert await right(stage, reply, body)
    assert kv.receipt(reply)["disaggregate"] == "prefill_failed"
    assert "prefill" not in kv.receipt(reply)
    await stage.quiet()


async def test_76a_valid_for_the_first_only_is_refused_once(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane, decode_args=("--max-model-len", 64)))
    reply = await stage.post(PATH, disagg.completion())
    assert reply.status_code == 400 and "maximum context length is 64" in reply.text
    await stage.quiet()  # the blocks at the first engine are let go
    calls = disagg.metric(stage.prefills[0], "request_success_total", "length")
    assert calls == 1


async def test_76h_valid_for_the_second_only_is_answered(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane, prefill_args=("--max-model-len", 64)))
    body = disagg.completion()
    reply = await stage.post(PATH, body)
    assert await right(stage, reply, body)
    assert kv.receipt(reply)["disaggregate"] == "prefill_refused"
    began = monotonic()
    bad = await stage.post(PATH, disagg.completion(temperature=-1))
    assert bad.status_code == 400 and "temperature" in bad.text and monotonic() - began < 2
    await stage.quiet()


async def test_76d_too_late_is_computed_anew(play: Play, lane: str) -> None:
    conf = Conf(lane=lane, lease_s=0.3, prefill_args=("--num-gpu-blocks", 40))
    stage = await play(conf)
    stage.prefills[0].faults(["delay:ms=500,times=1"])
    body = disagg.completion()
    reply = await stage.post(PATH, body)
    assert await right(stage, reply, body)
    assert kv.receipt(reply)["disaggregate"] == "expired"
    assert disagg.metric(stage.decodes[0], "external_prefix_cache_hits_total") == 0
    await stage.quiet()


async def test_76c_stale_parameters_mislead_a_plain_proxy_and_not_us(
    play: Play, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = Conf(lane=lane, lease_s=0.3, prefill_args=("--num-gpu-blocks", 40))
    stage = await play(conf)
    p, d = stage.prefills[0], stage.decodes[0]
    body = disagg.completion()

    def overwrite() -> None:
        p.wait_for(lambda s: s["transfer"]["leases"] == 0)
        for i in range(4):
            p.call("POST", PATH, disagg.completion(f"other {i} " * 40))

    ask = {"do_remote_decode": True, "do_remote_prefill": False}
    first = await asyncio.to_thread(
        p.call, "POST", PATH, {**body, "max_tokens": 1, "kv_transfer_params": ask}
    )
    await asyncio.to_thread(overwrite)
    stale = {**body, "kv_transfer_params": first[1]["kv_transfer_params"]}
    status, value = await asyncio.to_thread(d.call, "POST", PATH, stale)
    assert status == 200 and disagg.said(value) != disagg.said(await stage.right(PATH, body))
    await asyncio.to_thread(d.call, "POST", "/reset_prefix_cache")

    hold = Transfer.hold

    def late(self: Transfer, handed: Any, now: float) -> None:
        hold(self, handed, now)
        overwrite()  # the event loop stands still meanwhile

    monkeypatch.setattr(Transfer, "hold", late)
    monkeypatch.setattr(TwoLegs, "_handed", later(TwoLegs._handed))
    other = disagg.completion(disagg.TEXT + " again")
    reply = await stage.post(PATH, other)
    assert await right(stage, reply, other)
    assert kv.receipt(reply)["disaggregate"] == "expired"


def later(handed: Any) -> Any:
    """The time that a method gets is that of when it is asked for: here, of the blocks' end."""

    def call(self: TwoLegs, leg: Any, what: Any, now: float) -> None:
        handed(self, leg, what, now + 1.0)

    return call


@pytest.mark.parametrize("fault", ["status:code=500,times=1", "reset:times=1", "garbage:times=1"])
async def test_88_an_answer_that_fails_before_a_byte_is_made_anew(
    play: Play, lane: str, fault: str
) -> None:
    stage = await play(Conf(decodes=2, lane=lane, server="max_fails=0", lease_s=2))
    for engine in stage.decodes:
        engine.faults([fault])
    reply = await stage.post(PATH, disagg.fresh())
    assert reply.status_code >= 500  # both failed: tried twice, not more
    stage.engine(stage.prefills[0]).handing.__init__()
    for engine in stage.decodes:
        engine.faults([])
    used = kv.receipt(await stage.post(PATH, disagg.fresh()))["engine"]
    next(e for e in stage.decodes if e.address == used).faults([fault])
    asked = "1"
    for _ in range(40):
        body = disagg.fresh()
        reply = await stage.post(PATH, body)
        assert await right(stage, reply, body)
        asked = kv.receipt(reply)["attempts"]
        if asked != "1":
            break
    assert asked == "2"
    await stage.quiet()


async def test_an_answer_that_fails_is_an_error_where_that_is_wanted(
    play: Play, lane: str
) -> None:
    stage = await play(Conf(decodes=2, lane=lane, upstream="on_decode_error fail;", lease_s=2))
    for engine in stage.decodes:
        engine.faults(["reset:times=1"])
    assert (await stage.post(PATH, disagg.fresh())).status_code == 502
    await stage.quiet()


async def test_76i_the_locations_timeouts_hold_for_both_legs(play: Play, lane: str) -> None:
    slow = Conf(lane=lane, prefill_args=("--fault", "delay:ms=400"))
    passes = await play(slow.__class__(**{**_fields(slow), "location": TIMEOUT.format("10s")}))
    assert (await passes.post(PATH, disagg.completion())).status_code == 200
    conf = {**_fields(slow), "location": TIMEOUT.format("200ms"),
            "upstream": "on_prefill_error fail;"}  # fmt: skip
    fails = await play(Conf(**conf))
    assert (await fails.post(PATH, disagg.completion())).status_code == 504
    both = {**_fields(slow), "location": "proxy_total_timeout 200ms;"}
    fails = await play(Conf(**both))
    assert (await fails.post(PATH, disagg.completion())).status_code == 504


TIMEOUT = "proxy_first_byte_timeout {};"


def _fields(conf: Conf) -> dict[str, Any]:
    return {name: getattr(conf, name) for name in conf.__dataclass_fields__}


async def test_76g_a_pair_that_does_not_come_together_is_kept_apart(
    play: Play, lane: str
) -> None:
    conf = Conf(lane=lane, policy="fail", decode_args=("--block-size", 32), server="max_fails=0")
    stage = await play(conf)
    body = disagg.completion()
    assert (await stage.post(PATH, disagg.fresh())).status_code == 500
    reply = await stage.post(PATH, body)
    assert await right(stage, reply, body)
    assert kv.receipt(reply)["disaggregate"] == "barred"
    engine = stage.engine(stage.decodes[0])
    assert engine.state(monotonic()) == "up"  # neither is benched for it


async def test_an_engine_that_hands_nothing_over_is_found_out(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane))
    stage.prefills[0].faults(["garbage:times=0"])
    body = disagg.completion()
    own = stage.app.table.groups["sim"].by_address[stage.prefills[0].address]
    own.handing.failed("", monotonic())
    reply = await stage.post(PATH, body)
    assert await right(stage, reply, body) and kv.receipt(reply)["disaggregate"] == "barred"


async def test_pending_prefills_of_an_engine_are_limited(play: Play, lane: str) -> None:
    conf = Conf(lane=lane, mode="always pending=1", prefill_args=("--fault", "delay:ms=400"))
    stage = await play(conf)
    bodies = [disagg.completion(f"{i} {disagg.TEXT}") for i in range(4)]
    replies = await asyncio.gather(*(stage.post(PATH, body) for body in bodies))
    whys = sorted(kv.receipt(reply)["disaggregate"] for reply in replies)
    assert whys == ["forced", "no_prefill", "no_prefill", "no_prefill"]
    await stage.quiet()
