"""What requests bring to an engine's modelled load goes with them, whatever their end."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from harness.kv import LANES, chat, receipt, settled, until

from engines.sim.tokens import WORDS

CLIENTS = 400
AT_ONCE = 40


def load(gw: Any) -> list[tuple[int, int, int, int, float]]:
    """Of each engine: in flight, waiting for a first token, decoding, KV tokens, work queued."""
    group = gw.app.table.groups["sim"]
    (team,) = group.teams
    core = gw.app.memory.ledger.core
    from native._core import Prompt

    rows = team.scorer.explain(Prompt(b"\0" * 64), b"\1" * len(team.engines), 0.0)
    return [
        (core.inflight(e.slot), row.waiting, row.running, row.kv_tokens,
         core.load(e.slot).prefill_tokens)
        for e, row in zip(team.engines, rows, strict=True)
    ]  # fmt: skip


def idle(gw: Any) -> bool:
    return all(not any(row) for row in load(gw))


async def leave_early(url: str, body: dict[str, Any], after_s: float) -> None:
    """Asks, and closes its connection after a while, whatever has come by then."""
    host, _, port = url.partition("://")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    try:
        async with asyncio.timeout(after_s):
            while await reader.read(65536):
                pass
    except TimeoutError:
        pass
    writer.close()


@pytest.mark.parametrize("tokens", ["local", "remote"])
async def test_cancelled_at_any_moment_nothing_is_left(  # type: ignore[no-untyped-def]
    sim, serve, model: Path, tokens: str
) -> None:
    own = ["--tokenizer", model] if tokens == "local" else []
    slow = ["--profile", "fixed:4", "--tokens", 40]
    engines = [sim(*own, *slow) for _ in range(2)]
    source = f"tokenizer {model};" if tokens == "local" else "tokenizer remote;"
    gw = await serve(engines, upstream=source)
    await settled(gw, "local" if tokens == "local" else "engine")
    url = str(gw.client.base_url).rstrip("/")
    rnd = random.Random(7)
    seen_busy = False
    for _ in range(0, CLIENTS, AT_ONCE):
        wave = []
        for _ in range(AT_ONCE):
            text = "".join(f" {rnd.choice(WORDS)}" for _ in range(rnd.randrange(1, 400)))
            body = chat(text, stream=rnd.random() < 0.7, max_tokens=40)
            wave.append(leave_early(url, body, rnd.random() ** 2 * 0.3))
        running = asyncio.gather(*wave)
        while not running.done():
            seen_busy = seen_busy or not idle(gw)
            await asyncio.sleep(0.002)
        await running
    assert seen_busy
    await until(lambda: idle(gw), "all load to be given back")
    assert gw.app.memory.ledger.core.ignored() == (0, 0)
    reply = await gw.client.post("/v1/chat/completions", json=chat("the of and"))
    assert reply.status_code == 200 and idle(gw)


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
