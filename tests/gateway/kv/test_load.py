"""What requests bring to an engine's modelled load goes with them, whatever their end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.kv import LANES, chat, receipt, settled, until
from harness.kv_load import idle, load

from engines.sim.tokens import WORDS


@pytest.mark.parametrize("lane", LANES)
async def test_a_request_is_charged_until_its_first_token_then_until_its_end(  # type: ignore[no-untyped-def]
    sim, serve, model: Path, lane: str
) -> None:
    one = sim("--tokenizer", model, "--fault", "slow_first:ms=150", "--fault", "slow_tokens:ms=40")
    gw = await serve([one], upstream=f"tokenizer {model};", lane=lane)
    await settled(gw, "local")
    body = chat(" the of and to" * 50, stream=True, max_tokens=8)
    phases = []
    async with gw.client.stream("POST", "/v1/chat/completions", json=body) as reply:
        await until(lambda: load(gw)[0][1] == 1, "the request to wait for its first token")
        inflight, waiting, running, kv_tokens, prefill = load(gw)[0]
        assert (inflight, waiting, running) == (1, 1, 0) and kv_tokens > 200 and prefill > 200
        async for _ in reply.aiter_bytes():
            phases.append(load(gw)[0][1:3])
    assert (0, 1) in phases
    await until(lambda: idle(gw), "the load to be given back")


async def test_load_sends_equal_prompts_elsewhere(sim, serve, model: Path) -> None:  # type: ignore[no-untyped-def]
    """Without a prefix to share, what runs at an engine decides."""
    engines = [
        sim("--tokenizer", model, "--fault", "slow_first:ms=400", "--tokens", 4) for _ in range(3)
    ]
    gw = await serve(engines, upstream=f"tokenizer {model};")
    await settled(gw, "local")

    async def ask(at: int) -> str:
        text = "".join(f" {WORDS[(at * 7 + n) % len(WORDS)]}" for n in range(300))
        return receipt(await gw.client.post("/v1/chat/completions", json=chat(text)))["engine"]

    tasks = []
    for at in range(3):
        tasks.append(asyncio.create_task(ask(at)))
        await until(lambda n=at: sum(r[0] for r in load(gw)) == n + 1, "the request to be sent")
    assert len(set(await asyncio.gather(*tasks))) == 3
