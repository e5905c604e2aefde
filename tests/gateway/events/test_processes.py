"""Two workers that follow engines in processes of their own: deaths of everybody, and reloads."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness import kv_events as kv
from harness import waiting
from harness.client import Client
from harness.gateway import Gateway, free_ports

from engines.sim.process import SimEngine, start_all

TEXT = "the water of the land over the sea " * 30
Rows = dict[str, dict[str, Any]]


class Fleet:
    """Engines, and a gateway with two workers in front of them."""

    def __init__(self, folder: Path, engines: list[SimEngine], servers: list[str]) -> None:
        self.folder = folder
        self.engines = engines
        self.servers = servers
        (self.port,) = free_ports(1)
        self.gateway = self.start()

    def start(self) -> Gateway:
        self.gateway = Gateway(self.text(), self.folder, admin=f"{self.folder}/admin.sock")
        self.gateway.wait_ready(("127.0.0.1", self.port))
        return self.gateway

    def text(self) -> str:
        lines = " ".join(f"server {server};" for server in self.servers)
        return (
            "worker_processes 2; error_log stderr info;\nhttp { access_log off;\n"
            f" upstream main {{ {lines} kv_aware; tokenizer remote; health_check interval=1s; }}\n"
            f" server {{ listen 127.0.0.1:{self.port};\n"
            "  location / { proxy_pass http://main; } }\n"
            f" server {{ listen unix:{self.folder}/admin.sock; location / {{ admin; }}\n"
            "  location = /metrics { metrics; } } }\n"
        )

    def reload(self, *servers: str) -> None:
        self.servers = list(servers)
        before = self.status()["generation"]
        self.gateway.config_file.write_text(self.text())
        self.gateway.signal(signal.SIGHUP)
        waiting.until(lambda: self.status()["generation"] == before + 1, "the reload", 10)

    def status(self) -> dict[str, Any]:
        return self.gateway.status()

    def pids(self, kind: str) -> list[int]:
        return [
            p["pid"]
            for p in self.status()["processes"]
            if (p["kind"], p["state"]) == (kind, "serving")
        ]

    def rows(self) -> dict[int, Rows]:
        """What each worker thinks of each engine, by pid and address."""
        said: dict[int, Rows] = {}

        def heard(document: dict[str, Any]) -> bool:
            engines = document["upstreams"]["main"]["engines"]
            said[document["pid"]] = {row["address"]: row["kv"] for row in engines}
            return True

        self.gateway.wait_each(heard, "both workers to answer", 10)
        return said

    def wait_exact(self, address: str, next_batch: int | None = None) -> None:
        """Until both workers know all that this engine has said."""

        def exact(document: dict[str, Any]) -> bool:
            rows = {row["address"]: row["kv"] for row in document["upstreams"]["main"]["engines"]}
            row = rows.get(address)
            return (
                row is not None
                and row["trust"] == "exact"
                and row["worst"] == "exact"
                and (next_batch is None or row["events"]["next"] == next_batch)
            )

        try:
            self.gateway.wait_each(exact, f"{address} to be exact at {next_batch}")
        except waiting.NeverHappened as error:
            raise AssertionError(f"{error}\n{self.rows()}\n{self.gateway.log()[-3000:]}") from None

    def post(self, document: dict[str, Any]) -> int:
        with Client(f"{self.folder}/admin.sock") as client:
            body = json.dumps(document).encode()
            return int(client.ask(body, target="/kvgate/upstreams/main/servers").status)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """`fleet(count, *args)` starts engines and the gateway."""
    with ExitStack() as stack:

        def make(count: int = 1, *args: object, line: str = "") -> Fleet:
            engines = [kv.engine(*args, thread=False) for _ in range(count)]
            for engine in engines:
                stack.callback(engine.stop)
            start_all(engines)
            one = Fleet(tmp_path, engines, [f"{e.address} {line}" for e in engines])
            stack.callback(lambda: (one.gateway.kill(), one.gateway.stop()))
            return one

        yield make


def seq(engine: SimEngine, rank: int = 0) -> int:
    return int(engine.state()["event_seq"][rank])


def test_both_workers_follow_every_engine(fleet: Callable[..., Fleet]) -> None:
    one = fleet(2)
    for engine in one.engines:
        kv.ask(engine, TEXT)
        one.wait_exact(engine.address, seq(engine))
    shown = one.gateway.metrics()
    for engine in one.engines:
        labels = f'engine="{engine.address}",state="exact",upstream="main"'
        assert f"kvgate_engine_trust{{{labels}}} 1.0" in shown
    lines = one.gateway.log().splitlines()
    exact = [line for line in lines if "trust in what" in line and line.endswith(": exact")]
    assert len(exact) == 2, exact  # once for both workers


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
def test_a_worker_that_is_replaced_learns_everything_again(
    fleet: Callable[..., Fleet], number: signal.Signals
) -> None:
    one = fleet(1)
    engine = one.engines[0]
    kv.fill(engine, 5)
    one.wait_exact(engine.address, seq(engine))
    victim = one.pids("worker")[0]
    os.kill(victim, number)
    waiting.until(
        lambda: victim not in one.pids("worker") and len(one.pids("worker")) == 2, "another", 15
    )
    one.wait_exact(engine.address, seq(engine))


def test_an_engine_that_comes_back_on_other_ports_is_found(
    fleet: Callable[..., Fleet]
) -> None:
    """Its HTTP port stays; its publishers bind where the system lets them. The monitor, who asks,
    has been killed in between.
    """
    one = fleet(1)
    engine = one.engines[0]
    kv.fill(engine, 3)
    one.wait_exact(engine.address, seq(engine))
    before = kv.source(engine).endpoint
    (monitor,) = one.pids("monitor")
    os.kill(monitor, signal.SIGKILL)
    waiting.until(lambda: one.pids("monitor") not in ([], [monitor]), "another monitor", 15)
    engine.kill()
    engine.start()
    kv.fill(engine, 2)
    assert kv.source(engine).endpoint != before
    one.wait_exact(engine.address, seq(engine))


def test_a_reload_leaves_the_others_alone(fleet: Callable[..., Fleet]) -> None:
    one = fleet(3)
    a, b, c = one.engines
    one.reload(a.address, b.address)
    for engine in (a, b):
        kv.fill(engine, 3)
        one.wait_exact(engine.address, seq(engine))
    replays = {pid: rows[a.address]["events"]["replays"] for pid, rows in one.rows().items()}
    one.reload(a.address, c.address)
    one.wait_exact(c.address)
    kv.fill(a, 2, "land")
    one.wait_exact(a.address, seq(a))
    for pid, rows in one.rows().items():
        assert b.address not in rows
        assert rows[a.address]["events"]["restarts"] == 0
        # The check soon after joining may come in between; a join would be one more.
        assert rows[a.address]["events"]["replays"] <= replays.get(pid, 9) + 1


def test_a_gateway_that_is_killed_and_started_again_knows_all(
    fleet: Callable[..., Fleet]
) -> None:
    one = fleet(2)
    for engine in one.engines:
        kv.fill(engine, 4)
        one.wait_exact(engine.address, seq(engine))
    one.gateway.kill()
    one.gateway.stop()
    one.start()
    for engine in one.engines:
        one.wait_exact(engine.address, seq(engine))


def test_ranks_at_run_time(fleet: Callable[..., Fleet]) -> None:
    one = fleet(2, "--data-parallel-size", 2, line="ranks=2")
    a, b = one.engines
    for rank in (0, 1):
        kv.fill(a, rank + 1, rank=rank)
        one.wait_exact(f"{a.address}#{rank}", seq(a, rank))
    assert one.post({"action": "drain", "server": f"{a.address}#1"}) == 200
    states = {e["address"]: e["state"] for e in one.status()["upstreams"]["main"]["engines"]}
    assert states[f"{a.address}#0"] == "up" and states[f"{a.address}#1"] == "draining"
    assert one.post({"action": "remove", "server": f"{b.address}#1"}) == 400
    assert one.post({"action": "remove", "server": b.address}) == 200
    params = {"ranks": 2, "weight": 3}
    assert one.post({"action": "add", "server": b.address, "params": params}) == 200
    one.wait_exact(f"{b.address}#1")
