"""Engines that publish nothing, or say little of themselves: what decisions alone know."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness.kv import LANES, chat, receipt, settled, until
from harness.kv_load import load, predicted

from gateway.kv.facts import Facts
from gateway.kv.inquiry import hear

URL = "/v1/chat/completions"


async def matched(gw: Any, body: dict[str, Any]) -> int:
    reply = await gw.client.post(URL, json=body)
    assert reply.status_code == 200
    return int(receipt(reply)["matched-tokens"])


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("tokens", ["local", "off"])
async def test_prompts_that_begin_short_stay_where_they_grew(  # type: ignore[no-untyped-def]
    sim, serve, model: Path, tokens: str, lane: str
) -> None:
    """Scenario 70: less than a block is nothing to find; once there is more, it is."""
    engines = [sim("--tokenizer", model) for _ in range(3)]
    source = f"tokenizer {model};" if tokens == "local" else "tokenizer off;"
    gw = await serve(engines, upstream=source, lane=lane)
    await settled(gw, "local" if tokens == "local" else "bytes")
    talk: list[dict[str, str]] = []
    homes: list[str] = []
    for turn in range(9):
        text = " in" if turn < 3 else f" {turn} of the and to" * 5
        talk.append({"role": "user", "content": text})
        seen = receipt(await gw.client.post(URL, json=chat("", messages=talk)))
        homes.append(seen["engine"])
        talk.append({"role": "assistant", "content": " so"})
    assert len(set(homes[4:])) == 1, homes
    assert int(seen["matched-tokens"]) > 0.6 * int(seen["prompt-tokens"])


@pytest.mark.parametrize(("directive", "kept"), [("", False), ("kv_capacity 20000;", True)])
async def test_a_cache_with_host_memory_is_as_large_as_is_written(  # type: ignore[no-untyped-def]
    sim, serve, model: Path, directive: str, kept: bool
) -> None:
    """Scenario 70a: what the device holds is not all where an engine offloads."""
    one = sim("--tokenizer", model, "--num-gpu-blocks", 60)
    gw = await serve([one], upstream=f"tokenizer {model}; {directive}")
    await settled(gw, "local")
    (engine,) = gw.app.table.groups["sim"].engines
    await until(lambda: engine.models is not None, "what the engine says of itself")
    shown = gw.app.caches.status(engine)
    said = (20_000, "kv_capacity") if kept else (engine.capacity_tokens, "engine")
    assert (shown["capacity_tokens"], shown["capacity_from"]) == said
    bodies = [chat(f"{n}" + " the of and to in is" * 70) for n in range(6)]
    for body in bodies:
        assert await matched(gw, body) == 0
    await until(lambda: not predicted(gw), "what was sent to count no more")
    assert (await matched(gw, bodies[0]) > 300) is kept


async def test_an_engine_whose_metrics_tell_nothing_is_not_taken_for_idle(  # type: ignore[no-untyped-def]
    sim, serve, model: Path
) -> None:
    """Scenario 50: load is what was sent there; only the size of its cache is then a guess."""
    slow = ("--fault", "slow_first:ms=300")
    engines = [sim("--tokenizer", model, *slow) for _ in range(2)]
    for one in engines:
        one.faults(["status:code=404,path=/metrics", "slow_first:ms=300"])
    gw = await serve(engines, upstream=f"tokenizer {model}; profile h100-8b-tp1;")
    await settled(gw, "local")
    group = gw.app.table.groups["sim"]
    await until(lambda: all(e.models is not None for e in group.engines), "facts without a size")
    rows = (await gw.status())["engines"]
    assert {row["kv"]["capacity_from"] for row in rows} == {"profile"}
    assert all(row["kv"]["capacity_tokens"] > 100_000 for row in rows)

    async def ask(n: int) -> str:
        reply = await gw.client.post(URL, json=chat(f"{n}" + " the of and to" * 100))
        return receipt(reply)["engine"]

    tasks = [asyncio.create_task(ask(n)) for n in range(12)]
    await until(lambda: sum(row[0] for row in load(gw)) == 12, "all to be sent")
    assert set(Counter(await asyncio.gather(*tasks)).values()) == {6}


async def test_an_adapter_that_is_unloaded_takes_nobody_else_with_it(  # type: ignore[no-untyped-def]
    sim, serve, model: Path
) -> None:
    engines = [sim("--tokenizer", model, "--lora-modules", "tuned=/x") for _ in range(2)]
    gw = await serve(engines, upstream=f"tokenizer {model};")
    await settled(gw, "local")
    group = gw.app.table.groups["sim"]
    await until(lambda: all(e.serves("tuned") and e.models for e in group.engines), "facts")
    await until(lambda: "tuned" in gw.app.models.adapters("sim"), "the adapter to be known")
    hear(gw.app.table, "sim", engines[0].address, Facts(frozenset({"sim"})))
    for n in range(6):
        reply = await gw.client.post(URL, json=chat(f"{n} the of", model="tuned"))
        assert (reply.status_code, receipt(reply)["engine"]) == (200, engines[1].address)
    seen = set()
    for n in range(40):
        reply = await gw.client.post(URL, json=chat(f"{n} of the" * 9))
        assert (reply.status_code, receipt(reply)["policy"]) == (200, "kv")
        seen.add(receipt(reply)["engine"])
    assert seen == {one.address for one in engines}
