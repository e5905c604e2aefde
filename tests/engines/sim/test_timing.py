"""The engine's clock: steps take what the profile says, one pace for all requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx

from engines.sim.link import Link
from engines.sim.process import SimEngine

Start = Callable[..., SimEngine]
TRIES = 20  # a busy machine makes things late, never early: one good run proves the point


def timed(engine: SimEngine, **body: object) -> float:
    began = time.monotonic()
    reply = httpx.post(engine.url + "/v1/completions", timeout=30, json={
        "model": "m", "prompt": "x", "ignore_eos": True, **body})
    assert reply.status_code == 200
    return time.monotonic() - began


def test_a_token_takes_a_step(sim: Start) -> None:
    engine = sim("m", "--profile", "fixed:20")
    assert timed(engine, max_tokens=20) >= 0.4


def test_requests_of_a_batch_share_their_steps(sim: Start) -> None:
    engine = sim("m", "--profile", "fixed:20")
    assert timed(engine, max_tokens=20, n=20) >= 0.4
    assert engine.state()["steps"] == 20


def test_steps_shorter_than_a_timers_grain_keep_their_sum(sim: Start) -> None:
    engine = sim("m", "--profile", "fixed:20", "--time-scale", 0.01)  # 0.2 ms a step
    for _ in range(TRIES):
        took = timed(engine, max_tokens=400)
        assert took >= 0.08
        if took < 0.4:  # 400 timers of a millisecond take longer
            return
    raise AssertionError(f"took {took} s")


def test_a_prefill_takes_its_time_in_chunks(sim: Start) -> None:
    engine = sim("m", "--profile", "fixed:20", "--max-num-batched-tokens", 64)
    assert timed(engine, prompt=list(range(1000, 1000 + 640)), max_tokens=1) >= 0.2
    assert engine.state()["steps"] == 10


async def shared() -> tuple[float, float]:
    """Seconds that 50 kB and 100 kB take which start together on a link of 1 MB/s."""
    link, loop = Link(1e6), asyncio.get_running_loop()
    began = loop.time()

    async def move(size: int) -> float:
        await link.move(size)
        return loop.time() - began

    small, large = await asyncio.gather(move(50_000), move(100_000))
    return small, large


async def test_a_link_is_shared_by_its_transfers() -> None:
    for _ in range(TRIES):
        small, large = await shared()
        assert small >= 0.095 and large >= 0.145  # both at half speed, then one alone
        if small < 0.14 and large < 0.19:
            return
    raise AssertionError(f"took {small} and {large} s")


async def test_a_cancelled_transfer_gives_its_share_back() -> None:
    link, loop = Link(1e6), asyncio.get_running_loop()
    for _ in range(TRIES):
        began = loop.time()
        doomed = asyncio.ensure_future(link.move(10_000_000))
        kept = asyncio.ensure_future(link.move(50_000))
        await asyncio.sleep(0)
        doomed.cancel()
        await kept
        if loop.time() - began < 0.09:  # 0.1 had the other kept its half
            return
    raise AssertionError("the cancelled transfer kept its share")


async def test_a_link_without_a_rate_takes_no_time() -> None:
    await asyncio.wait_for(Link(0).move(1 << 60), 1)
