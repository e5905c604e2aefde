"""Requests go where their prefix lies, and what is expected there is what the engine finds."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from harness.kv import LANES, cached, chat, receipt, settled, until

from engines.sim.tokens import WORDS
from gateway.kv.decisions import SIBLINGS_S
from native._core import Prompt

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOKENS = ("local", "remote")


def words(seed: int, count: int) -> str:
    rnd = random.Random(seed)
    return "".join(f" {rnd.choice(WORDS)}" for _ in range(count))


def events() -> list[str]:
    """Arguments of an engine that publishes its KV events at ports the system chooses."""
    config = {"enable_kv_cache_events": True, "endpoint": "tcp://*:0",
              "replay_endpoint": "tcp://*:0"}  # fmt: skip
    return ["--kv-events-config", json.dumps(config)]


@pytest.fixture
def fleet(sim, serve, model: Path) -> Any:  # type: ignore[no-untyped-def]
    """`await fleet(count, tokens=, lane=, args=)`: engines that publish events, trusted exactly."""

    async def start(
        count: int = 3, tokens: str = "local", lane: str = "express", args: tuple[Any, ...] = (),
        location: str = "", upstream: str = "", trust: str = "exact",
    ) -> Any:  # fmt: skip
        own = ["--tokenizer", model] if tokens == "local" else []
        engines = [sim(*own, *events(), *args) for _ in range(count)]
        source = f"tokenizer {model};" if tokens == "local" else "tokenizer remote;"
        gw = await serve(engines, upstream=source + upstream, lane=lane, location=location)
        gw.engines = {engine.address: engine for engine in engines}
        await settled(gw, "local" if tokens == "local" else "engine")
        await trusted(gw, trust)
        return gw

    return start


async def trusted(gw: Any, word: str = "exact") -> None:
    """All engines of the gateway are followed, and known to be."""
    caches = gw.app.caches

    def there() -> bool:
        engines = gw.app.table.groups["sim"].engines
        return all(caches.state(engine)[0] == word for engine in engines)

    await until(there, f"trust {word}")


async def followed(gw: Any) -> None:
    """What the engines have published so far is in the index."""

    def taken() -> bool:
        rows = {e.address: gw.app.caches.status(e) for e in gw.app.table.groups["sim"].engines}
        known = {name: (row["events"] or {}).get("next") or 0 for name, row in rows.items()}
        return known == {name: e.state()["event_seq"][0] for name, e in gw.engines.items()}

    await until(taken, "events to be taken")


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("tokens", TOKENS)
async def test_expected_is_what_the_engine_finds(fleet, tokens: str, lane: str) -> None:  # type: ignore[no-untyped-def]
    gw = await fleet(tokens=tokens, lane=lane)
    rnd = random.Random(5)
    talks = [[{"role": "system", "content": words(n, 60)}] for n in range(4)]
    hits = 0
    for step in range(24):
        talk = rnd.choice(talks)
        talk.append({"role": "user", "content": words(100 + step, rnd.randrange(5, 60))})
        body = {"model": "sim", "messages": talk, "max_tokens": 12}
        await followed(gw)
        reply = await gw.client.post(CHAT, json=body)
        seen = receipt(reply)
        assert (seen["policy"], seen["trust"]) == ("kv", "exact")
        assert int(seen["prompt-tokens"]) == reply.json()["usage"]["prompt_tokens"]
        assert int(seen["matched-tokens"]) == cached(reply)
        hits += cached(reply)
        talk.append(dict(reply.json()["choices"][0]["message"]))
        talk[-1] = {"role": "assistant", "content": talk[-1]["content"]}
    assert hits > 1000
    counts = gw.app.memory.kv
    assert (counts.count("compared"), counts.count("equal")) == (24, 24)
    assert counts.count("compared_cached") == hits


@pytest.mark.parametrize("lane", LANES)
async def test_a_conversation_stays_where_it_lies(fleet, lane: str) -> None:  # type: ignore[no-untyped-def]
    gw = await fleet(lane=lane)
    homes: dict[int, str] = {}
    talks = {n: [{"role": "user", "content": words(n, 120)}] for n in range(6)}
    for turn in range(4):
        for n, talk in talks.items():
            await followed(gw)
            body = {"model": "sim", "messages": talk, "max_tokens": 4}
            reply = await gw.client.post(CHAT, json=body)
            seen = receipt(reply)
            if turn:
                assert seen["engine"] == homes[n] and int(seen["matched-tokens"]) > 100
            homes[n] = seen["engine"]
            said = reply.json()["choices"][0]["message"]["content"]
            talk += [{"role": "assistant", "content": said},
                     {"role": "user", "content": words(1000 + turn * 10 + n, 20)}]  # fmt: skip
    assert len(set(homes.values())) > 1  # and not all of them on one


async def test_it_is_the_templated_prompt_that_counts(fleet) -> None:  # type: ignore[no-untyped-def]
    gw = await fleet()
    body = chat(words(1, 100))
    first = await gw.client.post(CHAT, json=body)
    await followed(gw)
    again = await gw.client.post(CHAT, json=body)
    tokens = first.json()["usage"]["prompt_tokens"]
    floor = (tokens - 1) // 16 * 16
    assert int(receipt(again)["matched-tokens"]) == cached(again) == floor > 0


async def test_other_tools_are_another_prompt(fleet) -> None:  # type: ignore[no-untyped-def]
    gw = await fleet(1)

    def with_tool(name: str) -> dict[str, Any]:
        function = {"name": name, "description": words(3, 40), "parameters": {"type": "object"}}
        return chat(words(1, 100), tools=[{"type": "function", "function": function}])

    for name, hit in (("alpha", False), ("beta", False), ("alpha", True)):
        await followed(gw)
        reply = await gw.client.post(CHAT, json=with_tool(name))
        assert int(receipt(reply)["matched-tokens"]) == cached(reply)
        assert (cached(reply) > 100) is hit


async def test_a_long_history_with_another_last_turn_goes_to_its_holder(fleet) -> None:  # type: ignore[no-untyped-def]
    gw = await fleet()
    history = [{"role": "user", "content": words(1, 600)},
               {"role": "assistant", "content": words(2, 50)}]  # fmt: skip
    homes = set()
    for at in range(6):
        await followed(gw)
        talk = [*history, {"role": "user", "content": words(50 + at, 10)}]
        reply = await gw.client.post(CHAT, json={"model": "sim", "messages": talk, "max_tokens": 2})
        homes.add(receipt(reply)["engine"])
        assert int(receipt(reply)["matched-tokens"]) == cached(reply)
    assert len(homes) == 1


@pytest.mark.parametrize(
    "prompt",
    [words(1, 90), [words(1, 90)], [7, 8, 9] * 30, [[7, 8, 9] * 30],
     [words(1, 90), words(2, 30)], [[7, 8, 9] * 30, [1] * 40]],
)  # fmt: skip
async def test_every_form_of_a_prompt_is_routed(fleet, prompt: Any) -> None:  # type: ignore[no-untyped-def]
    gw = await fleet(2)
    body = {"model": "sim", "prompt": prompt, "max_tokens": 2}
    first = receipt(await gw.client.post(TEXT, json=body))
    await followed(gw)
    reply = await gw.client.post(TEXT, json=body)
    seen = receipt(reply)
    assert (seen["policy"], seen["engine"]) == ("kv", first["engine"])
    assert int(seen["matched-tokens"]) > 60 and seen["trust"] == "exact"


async def test_images_that_look_alike_are_not_taken_for_each_other(fleet) -> None:  # type: ignore[no-untyped-def]
    gw = await fleet(1)
    start = "data:image/png;base64," + "A" * 2000

    def with_image(url: str) -> dict[str, Any]:
        parts = [{"type": "image_url", "image_url": {"url": url}},
                 {"type": "text", "text": words(1, 40)}]  # fmt: skip
        return {"model": "sim", "messages": [{"role": "user", "content": parts}], "max_tokens": 2}

    matched = []
    for url in (start + "B", start + "C", start + "B", "http://a/" + "x" * 999 + "1"):
        reply = await gw.client.post(CHAT, json=with_image(url))
        seen = receipt(reply)
        assert (seen["prompt"], seen["trust"]) == ("bytes", "approximate")
        matched.append(int(seen["matched-tokens"]))
    assert matched[1] < matched[2] and matched[3] < matched[2]


async def test_scopes_share_no_prefix(fleet) -> None:  # type: ignore[no-untyped-def]
    gw = await fleet(1, location="policy_header X-KVGate-Cache-Scope;")
    body = chat(words(1, 100))
    for scope, salt, hit in (
        ("a", "", False), ("b", "", False), ("a", "", True), ("", "own", False), ("", "own", True),
        ("a", "own", False), ("", "", False), ("b", "", True),
    ):  # fmt: skip
        await followed(gw)
        headers = {"x-kvgate-cache-scope": scope} if scope else {}
        asked = {**body, "cache_salt": salt} if salt else body
        reply = await gw.client.post(CHAT, json=asked, headers=headers)
        assert int(receipt(reply)["matched-tokens"]) == cached(reply)
        assert (cached(reply) > 0) is hit


async def test_a_retry_takes_the_same_prompt_elsewhere(fleet) -> None:  # type: ignore[no-untyped-def]
    location = "proxy_next_upstream error timeout http_503 non_idempotent;"
    gw = await fleet(2, location=location)
    body = chat(words(1, 200))
    home = receipt(await gw.client.post(CHAT, json=body))["engine"]
    await followed(gw)
    gw.engines[home].faults(["status:code=503,times=1"])
    reply = await gw.client.post(CHAT, json=body)
    seen = receipt(reply)
    assert (reply.status_code, seen["attempts"], seen["policy"]) == (200, "2", "kv")
    assert seen["engine"] != home and int(seen["matched-tokens"]) == cached(reply) == 0


async def test_a_prompt_that_no_engine_takes_goes_anyway(fleet) -> None:  # type: ignore[no-untyped-def]
    gw = await fleet(2, args=("--max-model-len", 64))
    reply = await gw.client.post(CHAT, json=chat(words(1, 200)))
    assert reply.status_code == 400 and "context length" in reply.json()["error"]["message"]
    assert receipt(reply)["engine"] in gw.engines


async def test_siblings_of_a_burst_follow_each_other(fleet) -> None:  # type: ignore[no-untyped-def]
    """Before any event has come, requests with a prefix that was just sent somewhere go there."""
    gw = await fleet(3, args=("--fault", "slow_first:ms=300"))
    prefix = words(1, 900)

    async def ask(at: int) -> dict[str, str]:
        return receipt(await gw.client.post(CHAT, json=chat(prefix + words(at, 5))))

    first = asyncio.create_task(ask(10))
    core = gw.app.memory.ledger.core
    await until(lambda: any(n for _, n in core.inflight_all()), "the first to be sent")
    seen = await ask(11)
    assert seen["engine"] == (await first)["engine"]
    assert "predicted=" in seen["tier"]


async def test_what_was_sent_counts_until_its_request_is_over(fleet) -> None:  # type: ignore[no-untyped-def]
    """After that the engine's events say what is there: of a refused request there is nothing."""
    gw = await fleet(2)
    for engine in gw.engines.values():
        engine.faults(["status:code=503"])
    reply = await gw.client.post(CHAT, json=chat(words(1, 300)))
    assert reply.status_code == 503
    index, sent = gw.app.table.index, monotonic()
    assert index.stats().predicted > 0

    def forgotten() -> bool:
        index.match(Prompt.of_list([1]), [0], monotonic())
        return bool(index.stats().predicted == 0)

    await until(forgotten, "the prediction to end")
    assert monotonic() < sent + SIBLINGS_S, "it ended by itself"
