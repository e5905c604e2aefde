"""What several see of one engine: one server in two upstreams, one engine seen by two workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness import kv_events as kv
from harness.watched import TEXT

from engines.sim.process import SimEngine
from gateway.fleet.ledger import ENGINES_MAX, place
from gateway.kv.board import Board
from gateway.kv.caches import WORDS

Start = Callable[..., SimEngine]


def conf(**upstreams: str) -> str:
    """Each upstream with its server line; the first answers at /, others at /NAME/."""
    text = ""
    for name, server in upstreams.items():
        text += f"upstream {name} {{ server {server}; kv_aware; tokenizer remote;"
        text += " health_check off; } "
    locations = " ".join(
        f"location /{'' if at == 0 else name + '/'} {{ proxy_pass http://{name}"
        f"{'' if at == 0 else '/'}; expose_receipt on; }}"
        for at, name in enumerate(upstreams)
    )
    return text + f"server {{ listen 127.0.0.1:0; {locations} }}"


async def test_a_server_in_two_upstreams_is_followed_once(sim: Start, watch: Any) -> None:
    one = sim()
    gw = await watch(conf(main=one.address, other=one.address))
    index = gw.app.table.index
    await gw.wait("exact")
    (other,) = gw.app.table.groups["other"].engines
    await gw.until(lambda: gw.app.caches.state(other)[0] == "exact", "exact there, too")
    assert index.stats().engines == 1 and len(gw.app.caches._wanted) == 1
    assert other.slot != gw.engines[0].slot
    await gw.complete(TEXT)
    prompt = kv.prompt(one, TEXT)
    held = prompt.tokens // 16 * 16
    await gw.until(lambda: gw.matched(prompt) == [held], "its blocks to be known")
    body = {"model": "m", "prompt": TEXT, "max_tokens": 2}
    reply = await gw.running.client.post("/other/v1/completions", json=body)
    assert int(reply.headers["x-kvgate-matched-tokens"]) >= held - 16
    joins = gw.status()["events"]["replays"]
    gw.apply(conf(other=one.address))
    assert gw.app.caches.state(other)[0] == "exact"
    assert index.match(prompt, [other.index_slot], 0.0)[0].device == held
    assert gw.app.caches.status(other)["events"]["replays"] <= joins + 1  # a check may have come
    gw.apply(conf(main=one.address, other=one.address, third=one.address))
    assert index.match(prompt, [gw.engines[0].index_slot], 0.0)[0].device == held
    gw.apply(conf(main=sim().address))
    await gw.until(lambda: index.stats().engines == 1, "the slot to be given back once")
    await gw.wait("exact")


async def test_upstreams_that_follow_a_server_in_different_ways_do_not_share(
    sim: Start, watch: Any
) -> None:
    one = sim()
    text = conf(main=one.address, other=one.address)
    first, mark, rest = text.partition("upstream other { ")
    gw = await watch(first + mark + "kv_events off; " + rest)
    await gw.wait("exact")
    (other,) = gw.app.table.groups["other"].engines
    assert gw.app.caches.state(other) == ("approximate", "kv_events off")
    assert gw.app.table.index.stats().engines == 2


async def test_status_tells_the_reason_of_the_worker_that_doubts_most(
    sim: Start, watch: Any
) -> None:
    gw = await watch(conf(main=sim().address))
    await gw.wait("exact")
    caches, column = gw.app.caches, place(gw.engines[0].slot)
    caches._board = board = Board(2, ENGINES_MAX, 1)
    board.say(column, WORDS["blind"], "nobody publishes at tcp://a:1")
    shown = gw.status()
    assert (shown["trust"], shown["reason"]) == ("exact", "")
    assert (shown["worst"], shown["worst_reason"]) == ("blind", "nobody publishes at tcp://a:1")
    board.say(column, WORDS["exact"])
    assert (gw.status()["worst"], gw.status()["worst_reason"]) == ("exact", "")
