"""`ranks=N`: each data-parallel rank of a server is an engine, with a cache, events and load of its
own, and one server's health.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from harness import kv_events as kv
from harness.gateway import free_ports
from harness.watched import TEXT, conf

from engines.sim.process import SimEngine

Start = Callable[..., SimEngine]


async def test_each_rank_is_an_engine_with_a_cache_of_its_own(sim: Start, watch: Any) -> None:
    one = sim("--data-parallel-size", 3)
    gw = await watch(conf(f"{one.address} ranks=3 weight=2"))
    assert [e.address for e in gw.engines] == [f"{one.address}#{rank}" for rank in range(3)]
    assert {e.line.weight for e in gw.engines} == {2}
    for rank in range(3):
        await gw.wait("exact", at=rank)
    kv.ask(one, TEXT, rank=1)
    prompt = kv.prompt(one, TEXT)
    held = prompt.tokens // 16 * 16
    await gw.until(lambda: gw.matched(prompt) == [0, held, 0], "rank 1 to have it")
    kv.ask(one, TEXT, rank=2)
    await gw.until(lambda: gw.matched(prompt) == [0, held, held], "rank 2 to have it")


async def test_written_endpoints_count_up_by_rank(sim: Start, watch: Any) -> None:
    """vLLM adds the rank to the port."""
    base, replay = following_ports(2), following_ports(2)
    one = sim(
        "--data-parallel-size", 2, endpoint=f"tcp://*:{base}", replay_endpoint=f"tcp://*:{replay}"
    )
    where = f"events=tcp://127.0.0.1:{base} replay=tcp://127.0.0.1:{replay}"
    gw = await watch(conf(f"{one.address} ranks=2 {where}"))
    for rank in range(2):
        await gw.wait("exact", at=rank)
    kv.ask(one, TEXT, rank=1)
    await gw.until(lambda: gw.matched(kv.prompt(one, TEXT))[1], "rank 1 to have it")
    assert gw.matched(kv.prompt(one, TEXT))[0] == 0


def following_ports(count: int) -> int:
    """The first of so many ports in a row that were free a moment ago."""
    while True:
        first = free_ports(1)[0]
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("0.0.0.0", port))
            return first


async def test_requests_say_which_rank_and_clients_do_not(sim: Start, watch: Any) -> None:
    one = sim("--data-parallel-size", 2, "--record")
    gw = await watch(
        conf(f"{one.address} ranks=2").replace("kv_aware; tokenizer remote;", "round_robin;")
    )
    seen = []
    for _ in range(4):
        await gw.complete(TEXT, **{"x-data-parallel-rank": "7"})
        seen.append(ranks_sent(one))
    assert sorted(map(tuple, seen)) == [("0",), ("0",), ("1",), ("1",)]


async def test_a_client_that_is_trusted_does_not_say_it_either(sim: Start, watch: Any) -> None:
    one = sim("--data-parallel-size", 2, "--record")
    text = conf(f"{one.address} ranks=2").replace(
        "proxy_pass http://main;", "proxy_pass http://main; trust_client on;"
    )
    gw = await watch(text.replace("kv_aware; tokenizer remote;", "round_robin;"))
    await gw.complete(TEXT, **{"x-data-parallel-rank": "7"})
    assert ranks_sent(one) in (["0"], ["1"])


def ranks_sent(one: SimEngine) -> list[str]:
    headers = one.state()["last_request"]["headers"]
    return [value for name, value in headers if name.lower() == "x-data-parallel-rank"]


@pytest.mark.parametrize(
    ("size", "line", "hint"),
    [(2, "", "write ranks=2"), (2, "ranks=4", "write ranks=2"), (1, "ranks=2", "remove ranks")],
)
async def test_a_number_of_ranks_that_is_not_the_engines(
    sim: Start, watch: Any, size: int, line: str, hint: str
) -> None:
    one = sim("--data-parallel-size", size)
    gw = await watch(conf(f"{one.address} {line}"))
    await gw.wait("approximate", hint)


async def test_a_server_is_checked_once_for_all_its_ranks(sim: Start, watch: Any) -> None:
    one = sim("--data-parallel-size", 4)
    text = conf(f"{one.address} ranks=4")
    gw = await watch(text.replace("health_check off;", "health_check interval=100ms fails=1;"))
    assert len(gw.app.health._tasks) == 1
    one.faults(["unhealthy"])
    await gw.until(lambda: not any(e.healthy for e in gw.engines), "all to be unhealthy")
    one.faults([])
    await gw.until(lambda: all(e.healthy for e in gw.engines), "all to be healthy again")


async def test_status_and_receipts_name_the_rank(sim: Start, watch: Any) -> None:
    one = sim("--data-parallel-size", 2)
    text = conf(f"{one.address} ranks=2").replace(
        "proxy_pass http://main;", "proxy_pass http://main; expose_receipt on;"
    )
    gw = await watch(text)
    for rank in range(2):
        await gw.wait("exact", at=rank)
    reply = await gw.complete()
    assert reply.headers["x-kvgate-engine"] in (f"{one.address}#0", f"{one.address}#1")
    assert json.dumps(gw.status(1))  # plain data
    assert gw.status(0)["events"]["endpoint"] != gw.status(1)["events"]["endpoint"]
