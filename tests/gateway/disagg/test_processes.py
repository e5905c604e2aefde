"""Engines that die or stand still, and engines of several ranks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness import disagg, kv
from harness.disagg import Conf

from engines.sim.process import SimEngine

PATH = "/v1/completions"
SLOW_LINK = ("--link-gb-s", "0.0004")


@pytest.fixture
def process() -> Iterator[Callable[..., SimEngine]]:
    """`process(*args)` starts a simulated engine as a process."""
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(SimEngine(*disagg.ENGINE, *args))


async def stage(gateway: Any, tmp_path: Path, conf: Conf, *engines: SimEngine) -> Any:
    p, d = engines
    return await gateway(
        disagg.text(conf, [p.address], [d.address], admin=tmp_path / "admin.sock")
    )


@pytest.mark.parametrize("policy", ["recompute", "fail"])
async def test_78_the_prefill_engine_dies_during_the_transfer(
    process: Any, gateway: Any, tmp_path: Path, lane: str, policy: str
) -> None:
    conf = Conf(lane=lane, policy=policy)
    p = process(*disagg.connector("kv_producer", conf), *SLOW_LINK)
    d = process(*disagg.connector("kv_consumer", conf))
    gw = await stage(gateway, tmp_path, conf, p, d)
    body = disagg.completion()
    asking = asyncio.create_task(gw.client.post(PATH, json=body, timeout=20))
    await kv.until(lambda: d.state()["transfer"]["pulls"] > 0, "the transfer to run")
    p.kill()
    reply = await asyncio.wait_for(asking, 10)
    if policy == "recompute":
        right = d.call("POST", PATH, body)[1]
        assert reply.status_code == 200 and disagg.said(reply.json()) == disagg.said(right)
    else:
        assert reply.status_code == 500


async def test_a_prefill_engine_that_stands_still_is_not_waited_for(
    process: Any, gateway: Any, tmp_path: Path, lane: str
) -> None:
    location = "proxy_first_byte_timeout 300ms;"
    conf = Conf(lane=lane, lease_s=0.6, location=location)
    p = process(*disagg.connector("kv_producer", conf))
    d = process(*disagg.connector("kv_consumer", conf))
    gw = await stage(gateway, tmp_path, conf, p, d)
    p.pause()
    body = disagg.completion()
    reply = await gw.client.post(PATH, json=body, timeout=20)
    p.resume()
    right = d.call("POST", PATH, body)[1]
    assert reply.status_code == 200 and disagg.said(reply.json()) == disagg.said(right)
    assert kv.receipt(reply)["disaggregate"] == "prefill_failed"


async def test_84_ranks_are_addressed_on_both_legs(
    process: Any, gateway: Any, tmp_path: Path, lane: str
) -> None:
    conf = Conf(lane=lane, server="ranks=2")
    ranks = ("--data-parallel-size", 2)
    p = process(*disagg.connector("kv_producer", conf), *ranks)
    d = process(*disagg.connector("kv_consumer", conf), *ranks)
    gw = await stage(gateway, tmp_path, conf, p, d)
    met: set[str] = set()
    for _ in range(20):
        bodies = [disagg.fresh() for _ in range(4)]
        asks = (gw.client.post(PATH, json=body, timeout=20) for body in bodies)
        for body, reply in zip(bodies, await asyncio.gather(*asks), strict=True):
            assert reply.status_code == 200, reply.text
            right = d.call("POST", PATH, body)[1]
            assert disagg.said(reply.json()) == disagg.said(right)
            met |= {kv.receipt(reply)["engine"], kv.receipt(reply)["prefill"]}
    assert len(met) == 4
    reply = await gw.client.post(PATH, json=disagg.fresh(), timeout=20)
    for engine, name in ((p, "prefill"), (d, "engine")):
        sent = dict(engine.state()["last_request"]["headers"])
        assert sent["x-data-parallel-rank"] == kv.receipt(reply)[name][-1]


async def test_86_the_first_token_is_counted_from_the_requests_arrival(
    process: Any, gateway: Any, tmp_path: Path, lane: str
) -> None:
    log = f"log_format d '$ttft'; access_log {tmp_path}/ttft.log d;"
    conf = Conf(lane=lane, location=log.replace("log_format d '$ttft'; ", ""))
    p = process(*disagg.connector("kv_producer", conf), "--fault", "delay:ms=300")
    d = process(*disagg.connector("kv_consumer", conf))
    text = disagg.text(conf, [p.address], [d.address], admin=tmp_path / "admin.sock")
    gw = await gateway("log_format d '$ttft'; " + text)
    reply = await gw.client.post(PATH, json=disagg.completion(stream=True), timeout=20)
    assert reply.status_code == 200 and json.dumps(reply.text)
    for sink in gw.app.writer.sinks.values():
        sink.flush()
    gw.app.writer.close()
    assert float((tmp_path / "ttft.log").read_text()) >= 0.3
