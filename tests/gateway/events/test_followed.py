"""The index follows what engines cache, through restarts, reloads, evictions and odd forms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from harness import kv_events as kv
from harness.watched import TEXT, conf

from engines.sim.process import SimEngine

Start = Callable[..., SimEngine]


async def test_a_restart_without_replay_clears_the_index_at_once(sim: Start, watch: Any) -> None:
    """Scenario 53: old blocks of an engine that restarted must not stay credited."""
    one = sim(replay_endpoint=None)
    gw = await watch(conf(one.address))
    await gw.wait("healing")
    # What is published before the subscription stands is lost, and not published again.
    asked: list[str] = []

    def heard() -> bool:
        asked.append(f"number {len(asked)} " * 30)
        kv.ask(one, asked[-1])
        return any(gw.matched(kv.prompt(one, text))[0] for text in asked)

    await gw.until(heard, "heard of")
    kv.ask(one, TEXT)
    await gw.until(lambda: gw.matched(kv.prompt(one, TEXT))[0], "learnt")
    one.faults(["restart"])
    assert kv.cached(one) == {}
    kv.ask(one, "something else " * 30)
    await gw.until(lambda: gw.matched(kv.prompt(one, TEXT)) == [0], "forgotten")
    assert gw.matched(kv.prompt(one, "something else " * 30))[0] > 0


async def test_a_removed_engine_leaves_nothing_in_the_index(sim: Start, watch: Any) -> None:
    """Scenario 54."""
    stays, leaves = sim(), sim()
    gw = await watch(conf(stays.address, leaves.address))
    for at, one in enumerate((stays, leaves)):
        kv.ask(one, TEXT)
        await gw.wait("exact", at=at)
    await gw.until(lambda: all(gw.matched(kv.prompt(stays, TEXT))), "both to be known")
    before = gw.app.table.index.stats()
    engine, gone = gw.engines
    gw.apply(conf(stays.address))
    await gw.until(lambda: gw.app.table.index.stats().pairs < before.pairs, "its blocks to go")
    assert gw.engines == (engine,) and gw.app.table.index.stats().engines == 1
    assert gone.index_slot == -1
    assert gw.matched(kv.prompt(stays, TEXT))[0] > 0, "who stays keeps its blocks"
    assert gw.status()["events"]["gaps"] == 0


async def test_a_cleared_cache_clears_the_index(sim: Start, watch: Any) -> None:
    """Scenario 75c; an idle engine tells of it with its next step."""
    one = sim()
    kv.ask(one, TEXT)
    gw = await watch(conf(one.address))
    await gw.wait("exact")
    assert gw.matched(kv.prompt(one, TEXT))[0] > 0
    one.call("POST", "/reset_prefix_cache")
    kv.ask(one, "another " * 60)
    await gw.until(lambda: gw.matched(kv.prompt(one, TEXT)) == [0], "forgotten")
    await gw.wait("exact")


async def test_an_engine_found_again_keeps_load_and_blocks(sim: Start, watch: Any) -> None:
    """Scenario 75d: a reload while ten requests run."""
    one = sim("--profile", "fixed:20", "--tokens", "60")
    gw = await watch(conf(one.address))
    await gw.wait("exact")
    kv.ask(one, TEXT)
    await gw.until(lambda: gw.matched(kv.prompt(one, TEXT))[0], "learnt")
    body = {"model": "m", "prompt": "w " * 40, "max_tokens": 50, "ignore_eos": True}
    tasks = [
        asyncio.create_task(gw.running.client.post("/v1/completions", json=body, timeout=30))
        for _ in range(10)
    ]
    engine = gw.engines[0]
    await gw.until(lambda: gw.app.table.ledger.in_flight(engine.slot) == 10, "ten in flight")
    for _ in range(3):
        gw.apply(conf(one.address, more="kv_events auto;"))
        assert gw.engines == (engine,)
        assert gw.app.table.ledger.in_flight(engine.slot) == 10
        assert gw.matched(kv.prompt(one, TEXT))[0] > 0
    assert [reply.status_code for reply in await asyncio.gather(*tasks)] == [200] * 10
    assert gw.status()["events"]["restarts"] == 0


@pytest.mark.parametrize("size", [32, 2096])
async def test_the_block_size_is_learnt(sim: Start, watch: Any, size: int) -> None:
    """Hybrid models publish blocks of odd sizes, and each engine its own."""
    one, other = sim("--block-size", size, "--kv-tokens", 100_000), sim()
    gw = await watch(conf(one.address, other.address))
    for at in (0, 1):
        await gw.wait("exact", at=at)
    long = "word " * (2 * size)
    for engine in (one, other):
        kv.ask(engine, long)
    prompt = kv.prompt(one, long)
    sizes = (size, 16)
    expected = [(prompt.tokens - 1) // size * size for size in sizes]
    await gw.until(lambda: gw.matched(prompt) == expected, f"{expected} to be matched")


@pytest.mark.parametrize("flag", ["--kv-events-bytes-hashes", "--kv-events-arrays"])
async def test_other_forms_of_events(sim: Start, watch: Any, flag: str) -> None:
    """Hashes of 32 bytes; events as arrays, as older versions send them."""
    one = sim(flag, "--num-gpu-blocks", 40)
    gw = await watch(conf(one.address))
    await gw.wait("exact")
    prompt = kv.prompt(one, TEXT)
    kv.ask(one, TEXT)
    await gw.until(lambda: gw.matched(prompt)[0], "learnt")
    kv.fill(one, 6, "evicting the first one by and by ")
    await gw.until(lambda: gw.matched(prompt) == [0], "evicted")
    await gw.wait("exact")


async def test_following_ends_and_begins_with_a_reload(sim: Start, watch: Any) -> None:
    one = sim()
    kv.ask(one, TEXT)
    aware = conf(one.address)
    gw = await watch(aware)
    await gw.wait("exact")
    index = gw.app.table.index
    gw.apply(aware.replace("kv_aware; tokenizer remote;", "least_conn;"))
    assert gw.engines[0].index_slot == -1 and gw.app.caches.status(gw.engines[0]) is None
    await gw.until(lambda: index.stats().engines == 0, "its slot to be given back")
    assert index.stats().pairs == 0
    gw.apply(aware)
    await gw.wait("exact")
    assert gw.matched(kv.prompt(one, TEXT))[0] > 0
    gw.apply(conf(one.address, more="kv_events off;"))
    await gw.until(lambda: index.stats().pairs == 0, "what events told to be forgotten")
    assert gw.state() == ("approximate", "kv_events off")
    gw.apply(aware)
    await gw.wait("exact")
