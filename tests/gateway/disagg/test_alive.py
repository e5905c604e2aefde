"""A decode engine that may not have read what it was given in time is not left to read it late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness import disagg, kv
from harness.disagg import Conf

from engines.sim.process import SimEngine

PATH = "/v1/completions"
LEASE_S = 1.0
LONG_LEASE_S = 5.0  # so long that what is left of it outlasts asking an engine for its state


@pytest.fixture
def process() -> Iterator[Callable[..., SimEngine]]:
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(SimEngine(*disagg.ENGINE, *args))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_decode_engine_that_stands_still_past_the_lease_gets_nothing(
    process: Any, gateway: Any, tmp_path: Path, lane: str, stream: bool
) -> None:
    conf = Conf(lane=lane, lease_s=LONG_LEASE_S, upstream="on_decode_error fail;")
    p = process(*disagg.connector("kv_producer", conf))
    d = process(*disagg.connector("kv_consumer", conf))
    gw = await gateway(disagg.text(conf, [p.address], [d.address], admin=tmp_path / "admin.sock"))
    body = disagg.completion(stream=stream)
    d.pause()
    try:
        reply = await asyncio.wait_for(gw.client.post(PATH, json=body, timeout=20), 10)
        assert reply.status_code == 504
        assert p.state()["transfer"]["leases"] == 1, "it must be taken back before the lease ends"
    finally:
        d.resume()
    await kv.until(lambda: p.state()["transfer"]["leases"] == 0, "nothing to be pinned")


async def test_one_that_is_only_slow_is_left_alone(
    process: Any, gateway: Any, tmp_path: Path, lane: str
) -> None:
    conf = Conf(lane=lane, lease_s=LEASE_S)
    p = process(*disagg.connector("kv_producer", conf))
    d = process(*disagg.connector("kv_consumer", conf), "--profile", "fixed:200")
    gw = await gateway(disagg.text(conf, [p.address], [d.address], admin=tmp_path / "admin.sock"))
    body = disagg.completion()
    reply = await asyncio.wait_for(gw.client.post(PATH, json=body, timeout=20), 20)
    assert reply.status_code == 200, reply.text
    assert reply.elapsed.total_seconds() > LEASE_S
    assert "prefill" in kv.receipt(reply)
    right = p.call("POST", PATH, body)[1]
    assert disagg.said(reply.json()) == disagg.said(right)


async def test_a_pair_that_was_apart_is_together_again_after_one_answer_in_one_piece(
    process: Any, gateway: Any, tmp_path: Path, lane: str
) -> None:
    conf = Conf(lane=lane)
    p = process(*disagg.connector("kv_producer", conf))
    d = process(*disagg.connector("kv_consumer", conf))
    gw = await gateway(disagg.text(conf, [p.address], [d.address], admin=tmp_path / "admin.sock"))
    handing = gw.app.table.groups["sim"].by_address[p.address].handing
    handing.failed(d.address, time.monotonic() - 11)  # its time is over: one may try
    for _ in range(3):
        reply = await gw.client.post(PATH, json=disagg.fresh(), timeout=20)
        assert "prefill" in kv.receipt(reply), kv.receipt(reply)
