"""Roles that follow the load where the gateway is several processes: the monitor moves engines, and
what it did is counted and said by all of them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import disagg
from harness.client import Client
from harness.gateway import Gateway, free_ports
from harness.waiting import until

from engines.sim.process import SimEngine

ELASTIC = "slo ttft=1s tpot=20ms; roles elastic dwell=1s;"


@pytest.fixture
def engines() -> Iterator[list[str]]:
    with contextlib.ExitStack() as stack:
        kind = disagg.connector("kv_both", disagg.Conf())
        sims = [stack.enter_context(SimEngine(*disagg.ENGINE, *kind)) for _ in range(3)]
        yield [sim.address for sim in sims]


def started(folder: Path, engines: list[str], conf: disagg.Conf, port: int) -> Gateway:
    text = disagg.text(conf, engines, [], admin=folder / "admin.sock")
    text = text.replace("role=prefill", "role=both").replace("127.0.0.1:0;", f"127.0.0.1:{port};")
    text = f"worker_processes 2; error_log stderr info; http {{ {text} }}"
    gateway = Gateway(text, folder, admin=str(folder / "admin.sock"))
    gateway.wait_ready(("127.0.0.1", port))
    return gateway


def set_role(gateway: Gateway, engine: str, role: str) -> tuple[int, Any]:
    body = json.dumps({"upstream": "sim", "server": engine, "role": role}).encode()
    with Client(gateway.admin) as client:
        reply = client.ask(body, target="/kvgate/roles")
        return reply.status, json.loads(reply.body)


def test_a_move_is_said_and_counted(engines: list[str], tmp_path: Path) -> None:
    [port] = free_ports(1)
    gateway = started(tmp_path, engines, disagg.Conf(upstream=ELASTIC), port)
    try:
        # Nothing asks for an engine that prefills alone, so it does not stay one.
        assert set_role(gateway, engines[0], "prefill")[0] == 200
        until(lambda: "moves from prefill to both" in gateway.log(), "the move", 60.0)
        assert "fault while looking" not in gateway.log()

        def is_counted() -> bool:
            return 'kvgate_role_moves_total{role="both"} 1.0' in gateway.metrics()

        until(is_counted, "its count")
    finally:
        gateway.stop()


def test_an_engine_is_not_made_idle(engines: list[str], tmp_path: Path) -> None:
    [port] = free_ports(1)
    gateway = started(tmp_path, engines, disagg.Conf(mode="off"), port)
    try:
        status, said = set_role(gateway, engines[0], "prefill")
        assert status == 400
        assert "does not disaggregate: prefill alone would be idle" in said["error"]["message"]
        assert set_role(gateway, engines[0], "both")[0] == 200
    finally:
        gateway.stop()
