"""Where events come from, and how far they are believed: told, written, absent, silent, wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from harness import kv_events as kv
from harness import kv_frames
from harness.watched import TEXT, conf

from engines.sim.process import SimEngine
from gateway.disagg.counts import DisaggCounts
from gateway.kv import trust
from gateway.kv.decisions import Decisions

Start = Callable[..., SimEngine]


async def test_what_an_engine_publishes_reaches_the_index(sim: Start, watch: Any) -> None:
    one, other = sim(), sim()
    kv.ask(other, TEXT)
    gw = await watch(conf(one.address, other.address))
    await gw.wait("exact", at=0)
    await gw.wait("exact", at=1)
    prompt = kv.prompt(one, TEXT)
    held = prompt.tokens // 16 * 16
    assert gw.matched(prompt) == [0, held]
    kv.ask(one, TEXT)
    await gw.until(lambda: gw.matched(prompt) == [held, held], "both to have it")
    reply = await gw.complete(TEXT)
    assert reply.status_code == 200


async def test_the_server_line_says_where_without_asking(sim: Start, watch: Any) -> None:
    one = sim()
    one.faults(["status:code=404,path=/kv_event_sources"])
    with pytest.raises(Exception):  # noqa: B017 - the fault holds for the test itself, too
        kv.source(one)
    one.faults([])
    where = kv.source(one)
    one.faults(["status:code=500,path=/kv_event_sources"])
    kv.ask(one, TEXT)
    gw = await watch(conf(f"{one.address} events={where.endpoint} replay={where.replay}"))
    await gw.wait("exact")
    assert gw.matched(kv.prompt(one, TEXT))[0] > 0
    assert one.state()["faults"][0]["hits"] == 0, "it was not asked"


async def test_an_engine_of_an_older_version_is_approximate(sim: Start, watch: Any) -> None:
    one = sim()
    one.faults(["status:code=404,path=/kv_event_sources"])
    gw = await watch(conf(one.address))
    await gw.wait("approximate", "(404)")
    assert gw.app.caches.assumes(gw.engines[0])


async def test_an_engine_without_a_publisher_is_approximate(watch: Any) -> None:
    with SimEngine("m", thread=True) as one:
        gw = await watch(conf(one.address))
        await gw.wait("approximate", "publishes no KV events")


async def test_kv_events_off_follows_nobody(sim: Start, watch: Any) -> None:
    gw = await watch(conf(sim().address, more="kv_events off;"))
    await gw.wait("approximate", "kv_events off")
    assert gw.app.discovery.found == {}


async def test_an_engine_that_cannot_say_yet_is_asked_again(sim: Start, watch: Any) -> None:
    one = sim()
    one.faults(["status:code=503,path=/kv_event_sources,times=3"])
    gw = await watch(conf(one.address))
    await gw.wait("approximate", "503")
    await gw.wait("exact")


async def test_a_wrong_port_is_reported_and_asked_about_again(sim: Start, watch: Any) -> None:
    one = sim()
    one.faults(["sources_port:port=1"])
    gw = await watch(conf(one.address))
    await gw.wait("blind", "nobody publishes at tcp://127.0.0.1:1")
    one.faults([])
    await gw.wait("exact")


async def test_silence_under_traffic_is_reported(
    sim: Start, watch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine whose events are accepted by its configuration and never come."""
    one = sim()
    gw = await watch(conf(one.address, more="kv_events auto quiet=300ms;"))
    await gw.wait("exact")
    one.faults(["events_lost"])

    async def traffic() -> None:
        for n in range(10_000):
            await gw.complete(f"number {n} " * 20)

    task = asyncio.create_task(traffic())
    await gw.wait("blind", "no KV events for 0.3s under traffic")
    task.cancel()
    said = [record.getMessage() for record in caplog.records]
    assert sum("no KV events" in message for message in said) == 1
    assert gw.app.caches.worst(gw.engines[0]).state == "blind"
    one.faults([])
    kv.ask(one, TEXT)
    await gw.until(lambda: gw.state()[0] != "blind", "heard of again")


async def test_prompts_that_fill_no_block_are_no_traffic(sim: Start, watch: Any) -> None:
    """Probes, say: there is nothing that an engine could tell of them."""
    one = sim()
    gw = await watch(conf(one.address, more="kv_events auto quiet=200ms;"))
    await gw.wait("exact")
    for _ in range(4):
        for _ in range(12):
            await gw.complete("hi")
        await asyncio.sleep(0.15)
    assert gw.state()[0] == "exact"


async def test_hits_that_contradict_the_events_end_belief(
    sim: Start, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of another engine under this one's address."""
    monkeypatch.setattr(trust, "DRIFT_S", 0.5)
    one = sim()
    kv.ask(one, TEXT)
    gw = await watch(conf(one.address))
    await gw.wait("exact")
    engine = gw.engines[0]
    for _ in range(trust.ENOUGH):
        gw.app.caches.observe(engine, 4096, 0, time.monotonic())
    assert gw.state() == ("approximate", trust.CONTRADICTS)
    await gw.until(lambda: gw.matched(kv.prompt(one, TEXT)) == [0], "its blocks to be forgotten")
    await gw.wait("exact")
    await gw.until(lambda: gw.matched(kv.prompt(one, TEXT))[0], "learnt again")


async def test_tokens_that_are_not_ours_make_it_approximate(sim: Start, watch: Any) -> None:
    gw = await watch(conf(sim().address))
    await gw.wait("exact")
    gw.app.caches.tokens(gw.engines[0], False, "its ids differ")
    assert gw.state() == ("approximate", "its ids differ")
    gw.app.caches.tokens(gw.engines[0], True)
    await gw.wait("exact")


async def test_hits_that_agree_for_long_make_a_part_the_whole(sim: Start, watch: Any) -> None:
    """What was missed at the start has left the engine's cache by and by."""
    one = sim(replay_endpoint=None)
    kv.fill(one, 2)
    gw = await watch(conf(one.address))
    await gw.wait("healing", "no replay endpoint")
    engine = gw.engines[0]
    for _ in range(trust.WINDOW - 1):
        gw.app.caches.observe(engine, 1600, 1600, time.monotonic())
    gw.app.caches.observe(engine, 0, 1600, time.monotonic())
    for _ in range(trust.WINDOW):
        assert gw.state()[0] == "healing"
        gw.app.caches.observe(engine, 1600, 1600, time.monotonic())
    await gw.wait("exact")


async def test_an_index_that_is_too_small_is_said_and_is_no_contradiction(
    sim: Start, watch: Any
) -> None:
    one = sim()
    gw = await watch("kv_index_size 1m; " + conf(one.address))
    await gw.wait("exact")
    engine, index = gw.engines[0], gw.app.table.index
    ids = list(range(20_000 * 16))
    index.apply(engine.index_slot, kv_frames.batch(kv_frames.stored(ids, 16)))
    await gw.wait("healing", "kv_index_size")
    for _ in range(trust.ENOUGH):
        gw.app.caches.observe(engine, 512, 4096, time.monotonic())
    assert gw.state()[0] == "healing", "more is found than there was room to know of"
    for _ in range(trust.WINDOW):
        gw.app.caches.observe(engine, 4096, 4096, time.monotonic())
    await gw.wait("exact")
    index.apply(engine.index_slot, kv_frames.batch(kv_frames.stored(ids, 16, seed=1)))
    await gw.wait("healing", "kv_index_size")
    index.apply(engine.index_slot, kv_frames.batch(kv_frames.AllBlocksCleared()))
    await gw.wait("exact")


@pytest.mark.parametrize(
    ("waiting", "predicted", "device", "held"),
    [
        (0, 0, 512, [(512, 0)]),
        (1, 0, 512, []),
        (0, 256, 512, []),
        # The rest of 512 lies below the device, and may be computed all the same.
        (0, 0, 0, [(0, 0)]),
        (0, 0, 128, [(128, 0)]),
    ],
)
def test_what_queues_and_siblings_change_is_no_contradiction(
    waiting: int, predicted: int, device: int, held: list[tuple[int, int]]
) -> None:
    """Only a prompt that went to work at once counts, upon what lay there."""
    observed = []
    believer = SimpleNamespace(
        observe=lambda _, p, a, now: observed.append((p, a)), computes=lambda *_: None
    )
    row = SimpleNamespace(waiting=waiting, predicted=predicted, device=device)
    kv_of = SimpleNamespace(
        reader=SimpleNamespace(row=row), comparable=True, matched=512, source="given", why=""
    )
    kv_of.computed = kv_of.prompt = None
    leg = SimpleNamespace(error=None, status=200, cached_tokens=0, prompt_tokens=0)
    ctx = SimpleNamespace(kv=kv_of, leg=leg, engine=object(), two=None)
    counts = SimpleNamespace(request=lambda *_: None)
    Decisions(None, believer, counts, DisaggCounts()).ended(ctx)  # type: ignore[arg-type]
    assert observed == held
