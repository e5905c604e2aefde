"""What engines say of themselves keeps requests from those that cannot serve them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.kv import chat, receipt, settled, until

from gateway.kv.facts import Facts, capacity_of

CHAT = "/v1/chat/completions"


def known(gw: Any) -> bool:
    return all(e.models is not None for e in gw.app.table.groups["sim"].engines)


async def test_an_adapter_is_asked_of_engines_that_have_it(sim, serve, model: Path) -> None:  # type: ignore[no-untyped-def]
    engines = [
        sim("--tokenizer", model, *(["--lora-modules", "tuned=/x"] if at == 1 else []))
        for at in range(3)
    ]
    gw = await serve(engines, upstream=f"tokenizer {model};")
    await settled(gw, "local")
    await until(lambda: known(gw), "facts of all engines")
    group = gw.app.table.groups["sim"]
    await until(lambda: "tuned" in gw.app.models.adapters("sim"), "the adapter to be known")
    for at in range(5):
        reply = await gw.client.post(CHAT, json=chat(f"{at} the of", model="tuned"))
        assert reply.status_code == 200
        assert receipt(reply)["engine"] == engines[1].address
    asked = {"request": chat("x", model="tuned")}
    rows = (await gw.admin.post("/kvgate/explain", json=asked)).json()["engines"]
    left = {row["engine"]: row["filtered"] for row in rows}
    assert left == {e.address: "" if e is group.engines[1] else "lora" for e in group.engines}


async def test_blocks_of_an_adapter_are_its_own(sim, serve, model: Path) -> None:  # type: ignore[no-untyped-def]
    events = json.dumps({"enable_kv_cache_events": True, "endpoint": "tcp://*:0"})
    one = sim("--tokenizer", model, "--lora-modules", "tuned=/x", "--kv-events-config", events)
    gw = await serve([one], upstream=f"tokenizer {model};")
    await settled(gw, "local")
    await until(lambda: "tuned" in gw.app.models.adapters("sim"), "the adapter to be known")
    for name, hit in (("sim", False), ("tuned", False), ("tuned", True), ("sim", True)):
        caches, engine = gw.app.caches, gw.app.table.groups["sim"].engines[0]

        def taken(caches: Any = caches, engine: Any = engine) -> bool:
            events = caches.status(engine)["events"]
            return bool(events) and (events["next"] or 0) == one.state()["event_seq"][0]

        await until(taken, "events to be taken")
        reply = await gw.client.post(CHAT, json=chat(" the of and to in" * 20, model=name))
        found = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] or 0
        assert int(receipt(reply)["matched-tokens"]) == found and (found > 0) is hit


async def test_a_prompt_goes_where_it_fits(sim, serve, model: Path) -> None:  # type: ignore[no-untyped-def]
    engines = [
        sim("--tokenizer", model, "--max-model-len", length) for length in (128, 4096, 128)
    ]
    gw = await serve(engines, upstream=f"tokenizer {model};")
    await settled(gw, "local")
    await until(lambda: known(gw), "facts of all engines")
    for at in range(4):
        reply = await gw.client.post(CHAT, json=chat(f"{at}" + " the of and to" * 60))
        assert (reply.status_code, receipt(reply)["engine"]) == (200, engines[1].address)


async def test_the_size_of_a_cache_is_what_the_engine_says(sim, serve) -> None:  # type: ignore[no-untyped-def]
    one = sim("--kv-tokens", 3200)
    gw = await serve([one], upstream="tokenizer remote;")
    await until(lambda: known(gw), "facts of the engine")
    assert gw.app.table.groups["sim"].engines[0].capacity_tokens == 3200


@pytest.mark.parametrize(
    ("page", "tokens"),
    [
        (b"", 0),
        (b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0\n', 1600),
        (b'x 1\nvllm:cache_config_info{kv_cache_size_tokens="70",num_gpu_blocks="9"} 1.0\n', 70),
        (b'vllm:cache_config_info{num_gpu_blocks="None",block_size="16"} 1.0\n', 0),
    ],
)
def test_capacity_from_metrics(page: bytes, tokens: int) -> None:
    assert capacity_of(page) == tokens


def test_facts_as_json_and_back() -> None:
    facts = Facts(frozenset({"b", "a"}), 4096, 70)
    assert Facts.of_json(json.loads(json.dumps(facts.as_json()))) == facts
    for bad in ({}, {"models": "x", "context": 1, "capacity": 2}, {"models": []}):
        assert Facts.of_json(bad) is None
