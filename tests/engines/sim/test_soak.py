"""Many requests at once on a small cache, some of whose clients lose patience."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from engines.sim.process import SimEngine

Start = Callable[..., SimEngine]
CLIENT = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_crowd_that_comes_and_goes_leaves_the_books_balanced(
    publishing: Start, subscriber: Any, ask: Any, seed: int
) -> None:
    engine = publishing("--num-gpu-blocks", 60, "--max-num-seqs", 6,
                        "--max-num-batched-tokens", 64, "--profile", "fixed:1")
    numbers = random.Random(seed)
    plans = [(f"shared {numbers.randrange(4)} " * numbers.randrange(2, 60), numbers.randrange(40),
              numbers.choice([0.001, 0.02, 0.05, 5, 5, 5])) for _ in range(120)]

    def one(plan: tuple[str, int, float]) -> None:
        prompt, tokens, patience = plan
        with contextlib.suppress(httpx.TimeoutException):
            CLIENT.post(engine.url + "/v1/completions", timeout=patience, json={
                "model": "m", "prompt": prompt, "max_tokens": tokens + 1, "ignore_eos": True,
                "n": 1 + tokens % 3, "seed": 1})

    with subscriber(engine) as sub, ThreadPoolExecutor(12) as pool:
        list(pool.map(one, plans))
        state = engine.wait_for(
            lambda s: s["running"] == s["waiting"] == s["blocks_used"] == 0, timeout_s=20)
        assert state["aborted"] > 0
        ask(engine, "one last " * 20)  # tells what the last evictions were
        seq = -1
        while seq < engine.state()["event_seq"][0] - 1:
            seq, events = sub.batch()
            sub.apply(events)
        assert sub.cached() == engine.call("GET", "/sim/cached")[1][0]
