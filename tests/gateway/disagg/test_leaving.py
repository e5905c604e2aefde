"""Clients that leave: nothing goes on for long, and nothing stays pinned."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from time import monotonic
from typing import Any

import httpx
import pytest
from harness import disagg, kv
from harness.disagg import Conf

from gateway.disagg import pairs
from gateway.disagg.two_legs import TwoLegs

Play = Callable[[Conf], Any]
PATH = "/v1/completions"
CLOSED_S = 0.2 + 0.15  # 200 ms, and what a busy machine adds
SLOW_LINK = ("--link-gb-s", "0.0004")  # a second for a prompt of disagg.TEXT


async def leave(stage: Any, body: dict[str, Any], when: Callable[[], bool], what: str) -> None:
    """Sends a request whose client leaves once `when` holds."""
    asking = asyncio.create_task(stage.post(PATH, body))
    await kv.until(when, what)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


def leg(stage: Any, engine: Any) -> bool:
    """Whether the gateway has a connection to an engine in use."""
    _, active = stage.engine(engine).connections()
    return bool(active)


@pytest.mark.parametrize("stream", [False, True])
async def test_in_mid_prefill(play: Play, lane: str, stream: bool) -> None:
    stage = await play(Conf(lane=lane, prefill_args=("--profile", "fixed:400")))
    p, d = stage.prefills[0], stage.decodes[0]
    await leave(stage, disagg.completion(stream=stream),
                lambda: p.state()["running"] > 0, "the prefill to run")  # fmt: skip
    flying = stage.app.table.ledger.in_flight
    await kv.until(lambda: flying(stage.engine(d).slot) == 0, "nothing to be expected of D")
    assert leg(stage, p)  # an abort that came too late would leave the blocks to their lease
    await stage.quiet()
    assert p.state()["blocks_used"] == 0 and d.state()["last_request"] is not None
    assert disagg.metric(p, "nixl_num_kv_expired_reqs_total") == 0


async def test_of_many_in_mid_prefill_those_far_behind_are_ended_at_once(
    play: Play, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "FAR_TOKENS", 1)  # the first does not count, the second is enough
    stage = await play(Conf(lane=lane, prefill_args=("--profile", "fixed:1500")))
    p = stage.prefills[0]
    asking = [asyncio.create_task(stage.post(PATH, disagg.fresh())) for _ in range(5)]
    await kv.until(lambda: p.state()["running"] + p.state()["waiting"] == 5, "all to be there")
    for one in asking:
        one.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    prefill = stage.engine(p)
    await kv.until(lambda: prefill.pending == 2, "three legs' end")
    await stage.quiet()
    assert prefill.pending == 0
    assert disagg.metric(p, "nixl_num_kv_expired_reqs_total") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_77_in_mid_transfer(play: Play, lane: str, stream: bool) -> None:
    stage = await play(Conf(lane=lane, decode_args=SLOW_LINK))
    p, d = stage.prefills[0], stage.decodes[0]
    await leave(stage, disagg.completion(stream=stream),
                lambda: d.state()["transfer"]["pulls"] > 0, "the transfer to run")  # fmt: skip
    began = monotonic()
    await kv.until(lambda: not leg(stage, d), "the leg's end")
    assert monotonic() - began < CLOSED_S
    await stage.quiet()
    assert p.state()["blocks_used"] == 0
    assert disagg.metric(p, "nixl_num_kv_expired_reqs_total") == 0


async def test_76_between_the_legs_the_blocks_are_let_go(
    play: Play, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = await play(Conf(lane=lane, decode_args=SLOW_LINK))
    p, d = stage.prefills[0], stage.decodes[0]
    handed = TwoLegs._handed

    def cut(self: TwoLegs, *what: Any) -> None:
        self._ctx.client.cut()
        handed(self, *what)

    monkeypatch.setattr(TwoLegs, "_handed", cut)
    await _leaves_nothing(stage, p, d)


async def test_76_while_the_second_leg_connects(
    play: Play, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends unsent: the decode engine has not heard of the blocks."""
    stage = await play(Conf(lane=lane))
    p, d = stage.prefills[0], stage.decodes[0]
    handed, sent = TwoLegs._handed, []

    def cut(self: TwoLegs, *what: Any) -> None:
        handed(self, *what)
        self._ctx.client.cut()
        sent.append(self._ctx.leg.bytes_sent)

    monkeypatch.setattr(TwoLegs, "_handed", cut)
    await _leaves_nothing(stage, p, d)
    assert sent[0] == 0  # no connection was idle yet


async def _leaves_nothing(stage: Any, p: Any, d: Any) -> None:
    for _ in range(20):
        with pytest.raises(httpx.HTTPError):
            await stage.post(PATH, disagg.fresh())
    await stage.quiet()
    assert p.state()["blocks_used"] == 0 and d.state()["last_request"] is not None
    assert disagg.metric(p, "nixl_num_kv_expired_reqs_total") == 0


async def test_300_clients_at_random_moments(play: Play, lane: str) -> None:
    conf = Conf(2, 2, lane=lane, lease_s=5, prefill_args=("--profile", "fixed:5"),
                decode_args=("--profile", "fixed:5"))  # fmt: skip
    stage = await play(conf)
    rng = random.Random(lane)
    done = []

    async def one() -> None:
        body = disagg.fresh()
        try:
            reply = await asyncio.wait_for(stage.post(PATH, body), rng.uniform(0.0, 0.4))
        except (TimeoutError, httpx.HTTPError):
            return
        done.append((body, reply))

    for _ in range(10):
        await asyncio.gather(*(one() for _ in range(30)))
    await stage.quiet()
    for engine in (*stage.prefills, *stage.decodes):  # those told in vain are cut off a bit later
        await kv.until(lambda engine=engine: engine.state()["blocks_used"] == 0, "no block in use")
    for body, reply in done[::10]:
        assert disagg.said(reply.json()) == disagg.said(await stage.right(PATH, body))
