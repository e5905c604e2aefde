"""Clients that leave at any moment, and steps that fail: nothing of their requests is left."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from harness.kv import LANES, chat, receipt, settled, until
from harness.kv_load import idle, leave_early, predicted

from engines.sim.tokens import WORDS
from gateway import decode, exchange, prompt
from gateway.exchange import Exchange
from gateway.kv.decisions import Decisions
from gateway.kv.routed import Routed
from gateway.stats import Statistics
from native._core import Ticket

CLIENTS = int(os.environ.get("KVGATE_TEST_CANCELS", "1000"))  # of both lanes together
AT_ONCE = 40
CHAT = "/v1/chat/completions"
EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}


def alive() -> int:
    """Objects that live as long as their request."""
    gc.collect()
    return sum(isinstance(one, (Exchange, Routed, Ticket)) for one in gc.get_objects())


def nothing_left(gw: Any) -> bool:
    return idle(gw) and predicted(gw) == 0 and gw.app.pipeline.gatehouse.active == 0


@pytest.mark.parametrize(("tokens", "lane"), [("local", "express"), ("remote", "starlette")])
async def test_cancelled_at_any_moment_nothing_is_left(  # type: ignore[no-untyped-def]
    sim, serve, model: Path, tokens: str, lane: str
) -> None:
    """Scenario 37: in every phase, tokenising in a thread and at an engine among them."""
    own = ["--tokenizer", model] if tokens == "local" else []
    slow = ["--profile", "fixed:4", "--tokens", 40, "--kv-events-config", json.dumps(EVENTS)]
    engines = [sim(*own, *slow) for _ in range(2)]
    source = f"tokenizer {model};" if tokens == "local" else "tokenizer remote;"
    gw = await serve(engines, upstream=source, lane=lane)
    await settled(gw, "local" if tokens == "local" else "engine")
    url = str(gw.client.base_url).rstrip("/")
    rnd = random.Random(7)
    before, seen_busy = alive(), False
    for _ in range(0, CLIENTS // 2, AT_ONCE):
        wave = []
        for _ in range(AT_ONCE):
            words = rnd.randrange(1, 400) if rnd.random() < 0.95 else 9000
            text = "".join(f" {rnd.choice(WORDS)}" for _ in range(words))
            body = chat(text, stream=rnd.random() < 0.7, max_tokens=40)
            wave.append(leave_early(url, body, rnd.random() ** 2 * 0.3))
        running = asyncio.gather(*wave)
        while not running.done():
            seen_busy = seen_busy or not idle(gw)
            await asyncio.sleep(0.002)
        await running
    assert seen_busy
    await until(lambda: nothing_left(gw), "all load and all predictions to be given back")
    assert gw.app.memory.ledger.core.ignored() == (0, 0)
    await until(lambda: alive() <= before, "objects of requests to go with them")
    reply = await gw.client.post(CHAT, json=chat("the of and"))
    assert reply.status_code == 200 and idle(gw)


def failing(call: Any, *, after: bool = False) -> Any:
    """The same function, but it raises; `after` it has done its work."""

    def fails(*args: Any, **more: Any) -> Any:
        if after:
            call(*args, **more)
        raise RuntimeError("scripted")

    return fails


STEPS = {
    "read": (prompt, "begin", False),
    "read in a thread": (prompt, "_read", False),
    "pick": (exchange, "by_prompt", False),
    "picked": (exchange, "by_prompt", True),
    "charged": (Decisions, "sent", True),
    "leg": (decode, "build", False),
    "leg made": (decode, "build", True),
    "first output": (Decisions, "first", False),
    "given back": (Decisions, "over", True),
    "ended": (Decisions, "ended", False),
    "counted": (Statistics, "request", False),
}


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("step", STEPS)
async def test_a_step_that_fails_leaves_nothing_in_flight(  # type: ignore[no-untyped-def]
    sim, serve, model: Path, lane: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 41: a fault of our own, at each step of a request."""
    engines = [sim("--tokenizer", model, "--max-model-len", 200_000) for _ in range(2)]
    gw = await serve(engines, upstream=f"tokenizer {model};", lane=lane)
    await settled(gw, "local")
    where, name, after = STEPS[step]
    failed = 0
    with monkeypatch.context() as patch:
        patch.setattr(where, name, failing(getattr(where, name), after=after))
        for size, stream in ((20, False), (20, True), (30_000, False)):
            body = chat(" the" * size, stream=stream, max_tokens=3)
            reply = await gw.client.post(CHAT, json=body)
            assert reply.status_code in (200, 500), reply.text
            failed += reply.status_code == 500
    tells = {"read in a thread", "first output", "given back", "ended", "counted"}
    assert failed == (1 if step == "read in a thread" else 0 if step in tells else 3)
    await until(lambda: nothing_left(gw), "all that the requests held to be given back")
    assert gw.app.memory.ledger.core.ignored() == (0, 0)
    reply = await gw.client.post(CHAT, json=chat("the of and"))
    assert (reply.status_code, receipt(reply)["policy"]) == (200, "kv")
    await until(lambda: nothing_left(gw), "the next one, too")
