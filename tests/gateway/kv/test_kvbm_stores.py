"""What a kvbm daemon keeps is credited to every engine that reaches it, while its events come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import kvbm_events
from harness.kv import LANES, cached, chat, receipt, settled, until
from harness.kvbm_events import KvbmEvents

from gateway.kv import stores
from gateway.kv.trust import BLIND

URL = "/v1/chat/completions"
PUBLISHES = json.dumps(
    {"enable_kv_cache_events": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}
)
TEXT = "the of and to in is " * 60


@pytest.fixture
def store() -> Iterator[KvbmEvents]:
    with KvbmEvents() as store:
        yield store


@pytest.fixture
def fleet(sim, serve, model: Path, store: KvbmEvents) -> Any:  # type: ignore[no-untyped-def]
    """`await fleet(reaching, lane=)`: three engines, of which so many reach the store."""

    async def start(reaching: int = 2, lane: str = "express") -> Any:
        args = ("--tokenizer", model, "--kv-events-config", PUBLISHES)
        engines = [sim(*args) for _ in range(3)]
        lines = [
            SimpleNamespace(address=f"{e.address} {store.params if at < reaching else ''}")
            for at, e in enumerate(engines)
        ]
        gw = await serve(lines, upstream=f"tokenizer {model};", lane=lane)
        gw.engines = [engine.address for engine in engines]
        await settled(gw, "local")
        caches, group = gw.app.caches, gw.app.table.groups["sim"]
        await until(
            lambda: all(caches.state(engine)[0] == "exact" for engine in group.engines), "trust"
        )
        gw.rows = lambda: {e.address: caches.status(e) for e in group.engines}
        reaches = gw.engines[:reaching]
        await until(lambda: all(gw.rows()[one]["kvbm"]["trust"] == "exact" for one in reaches),
                    "trust in the store")  # fmt: skip
        return gw

    return start


async def explained(gw: Any, body: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Tokens by tier, by engine."""
    found = (await gw.admin.post("/kvgate/explain", json={"request": body})).json()
    return {row["engine"]: row["matched"] for row in found["engines"]}


def only(gw: Any, *addresses: str) -> None:
    """The others are down."""
    group = gw.app.table.groups["sim"]
    for engine in group.engines:
        group.set_health(engine, engine.address in addresses, "", 0.0)


async def keep(gw: Any, store: KvbmEvents, body: dict[str, Any], tier: str) -> tuple[str, int]:
    """Has the first engine compute a prompt and the store keep it: the engine, and the tokens."""
    home = gw.engines[0]
    only(gw, home)
    first = receipt(await gw.client.post(URL, json=body))
    only(gw, *gw.engines)
    assert first["engine"] == home
    held = int(first["prompt-tokens"]) // 16 * 16

    async def device() -> bool:
        return bool((await explained(gw, body))[home]["device"] == held)

    await until(device, "the engine's own events")
    hashes = kvbm_events.stored(gw.rows()[home]["events"]["replay"])
    store.publish("BlockStored", hashes, tier)
    return home, held


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("tier", ["host", "disk", "remote"])
async def test_what_the_store_keeps_is_credited_to_who_reaches_it(  # type: ignore[no-untyped-def]
    fleet, store: KvbmEvents, tier: str, lane: str
) -> None:
    gw = await fleet(reaching=2, lane=lane)
    body = chat(TEXT)
    home, held = await keep(gw, store, body, tier)

    async def told() -> bool:
        found = await explained(gw, body)
        return all(
            found[one][tier] == (held if one != home and one in gw.engines[:2] else 0)
            for one in gw.engines
        )

    await until(told, "the store's blocks")
    shown = gw.rows()[gw.engines[0]]["kvbm"]
    assert shown["endpoint"] == store.endpoint
    assert (shown["blocks"], shown["unknown_blocks"]) == (held // 16, 0)
    assert gw.rows()[gw.engines[2]]["kvbm"] is None
    # The receipt names the tier, and an engine that computes all the same does not lose its trust.
    only(gw, *(one for one in gw.engines if one != home))
    for _ in range(30):
        reply = await gw.client.post(URL, json=body)
        assert receipt(reply)["engine"] != home
    assert cached(reply) == held
    assert {row["trust"] for row in gw.rows().values()} == {"exact"}


async def test_a_receipt_names_the_tier(fleet, store: KvbmEvents) -> None:  # type: ignore[no-untyped-def]
    gw = await fleet(reaching=3)
    body = chat(TEXT)
    home, held = await keep(gw, store, body, "disk")
    only(gw, *(one for one in gw.engines if one != home))

    async def told() -> bool:
        return any(row["disk"] == held for row in (await explained(gw, body)).values())

    await until(told, "the store's blocks")
    seen = receipt(await gw.client.post(URL, json=body))
    assert (seen["tier"], seen["matched-tokens"]) == (f"disk={held}", str(held))


async def test_a_store_that_is_gone_is_credited_to_nobody(  # type: ignore[no-untyped-def]
    fleet, store: KvbmEvents, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "BRIEF_S", 0.0)
    gw = await fleet(reaching=3)
    body = chat(TEXT)
    home, held = await keep(gw, store, body, "disk")

    async def told() -> bool:
        found = await explained(gw, body)
        return sum(row["disk"] for row in found.values()) == 2 * held

    await until(told, "the store's blocks")
    store._pub.close()

    async def forgotten() -> bool:
        found = await explained(gw, body)
        return sum(row["disk"] for row in found.values()) == 0

    await until(forgotten, "the end of its credit")
    assert gw.rows()[home]["kvbm"]["trust"] == "blind"
    assert (await explained(gw, body))[home]["device"] == held
    # Who is paged for it finds it said, and can have an alarm on it.
    start = f"kvbm {store.endpoint}: trust in what is known of its blocks: {BLIND} ("

    async def is_said() -> bool:
        return any(one.startswith(start) for one in caplog.messages)

    await until(is_said, "a line in the log")
    page = (await gw.admin.get("/metrics")).text
    line = f'kvgate_kvbm_trust{{engine="{home}",state="blind",upstream="sim"}} 1.0'
    assert line in page


async def test_blocks_that_left_the_store_are_credited_no_more(fleet, store: KvbmEvents) -> None:  # type: ignore[no-untyped-def]
    gw = await fleet(reaching=3)
    body = chat(TEXT)
    home, _ = await keep(gw, store, body, "disk")
    hashes = kvbm_events.stored(gw.rows()[home]["events"]["replay"])
    store.publish("BlockRemoved", hashes[2:], "disk")

    async def told() -> bool:
        found = await explained(gw, body)
        return {row["disk"] for one, row in found.items() if one != home} == {32}

    await until(told, "what is left")
