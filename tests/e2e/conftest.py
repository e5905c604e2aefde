"""Engines and gateway live for the whole session: a stock engine takes half a minute to start.

A test that hurts an engine mends it again before it ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2e import fleet
from e2e.tiered import Program
from harness.gateway import Gateway, free_ports

from engines.vllm.spec import KvEvents


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("e2e")


@pytest.fixture(scope="session")
def program() -> Iterator[Program]:
    """vLLM's tiering manager in a process of its own, for all who drive it."""
    with Program() as program:
        yield program


@pytest.fixture(scope="session")
def engines(folder: Path) -> Iterator[list[fleet.Engine]]:
    """Two equal engines; the first publishes KV events over TCP, the second over a unix socket."""
    first, second, events, *replay = free_ports(5)
    started = [
        fleet.engine(first, KvEvents(f"tcp://*:{events}", f"tcp://127.0.0.1:{replay[0]}"), folder),
        fleet.engine(
            second, KvEvents(f"ipc://{folder}/events", f"tcp://127.0.0.1:{replay[1]}"), folder
        ),
    ]
    try:
        for engine in started:
            engine.launch()
        for engine in started:
            engine.ready_s = engine.server.wait_ready()
            print(
                f"e2e: engine {engine.address} ready after {engine.ready_s:.0f} s", file=sys.stderr
            )
        yield started
    finally:
        for engine in started:
            if hasattr(engine, "server"):
                engine.server.stop()


@pytest.fixture(scope="session")
def gateway(engines: list[fleet.Engine], folder: Path) -> Iterator[dict[str, fleet.Lane]]:
    express, starlette = free_ports(2)
    admin = f"{folder}/admin.sock"
    config = fleet.CONFIG.format(
        model=fleet.MODEL,
        alias=fleet.ALIAS,
        engines=[engine.port for engine in engines],
        express=express,
        starlette=starlette,
        folder=folder,
        admin=admin,
    )
    process = Gateway(config, folder / "gateway", admin=admin)
    try:
        process.wait_ready(("127.0.0.1", express))
        yield {
            "express": fleet.Lane("express", f"http://127.0.0.1:{express}"),
            "starlette": fleet.Lane("starlette", f"http://127.0.0.1:{starlette}"),
        }
        assert process.alive, process.log()[-4000:]
    finally:
        process.stop()


@pytest.fixture(params=["express", "starlette"])
def lane(request: pytest.FixtureRequest, gateway: dict[str, fleet.Lane]) -> fleet.Lane:
    return gateway[request.param]


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=120) as client:
        yield client
