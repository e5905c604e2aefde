"""A gateway in this process, its prefill and decode engines simulated, all on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import disagg, kv

from engines.sim.process import SimEngine


@pytest.fixture(params=kv.LANES)
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass
class Stage:
    """`prefills`, `decodes`: the engines; `alone`: one that is not behind the gateway."""

    gw: Any
    admin: httpx.AsyncClient
    prefills: list[SimEngine]
    decodes: list[SimEngine]
    alone: SimEngine
    stuck: list[int] = field(default_factory=list)

    @property
    def app(self) -> Any:
        return self.gw.app

    @property
    def client(self) -> httpx.AsyncClient:
        client: httpx.AsyncClient = self.gw.client
        return client

    async def post(self, path: str, body: dict[str, Any], **how: Any) -> httpx.Response:
        return await self.client.post(path, json=body, timeout=30, **how)

    async def right(self, path: str, body: dict[str, Any]) -> Any:
        """What an engine by itself answers."""
        return (await asyncio.to_thread(self.alone.call, "POST", path, body))[1]

    def engine(self, sim: SimEngine) -> Any:
        """The gateway's idea of it."""
        return self.app.table.groups["sim"].by_address[sim.address]

    def leases(self) -> int:
        return sum(p.state()["transfer"]["leases"] for p in self.prefills)

    async def quiet(self) -> None:
        """Nothing is in flight, pending or pinned anywhere."""

        def still() -> bool:
            engines = self.app.table.groups["sim"].engines
            flying = sum(self.app.table.ledger.in_flight(e.slot) for e in engines)
            return flying == 0 and not any(e.pending for e in engines)

        await kv.until(still, "no request in flight or pending")
        await kv.until(lambda: self.leases() == 0, "no blocks pinned")


@pytest.fixture
def sim() -> Iterator[Callable[..., SimEngine]]:
    """`sim(*args)` starts a simulated engine in a thread."""
    with ExitStack() as stack:

        def start(*args: object) -> SimEngine:
            return stack.enter_context(SimEngine(*disagg.ENGINE, *args, thread=True))

        yield start


@pytest.fixture
async def play(
    sim: Callable[..., SimEngine], gateway: Callable[..., Any], tmp_path: Path
) -> AsyncIterator[Callable[..., Any]]:
    """`await play(disagg.Conf(...))`: the stage."""
    admins: list[httpx.AsyncClient] = []

    async def start(conf: disagg.Conf) -> Stage:
        prefills = [
            sim(*disagg.connector("kv_producer", conf), *conf.prefill_args)
            for _ in range(conf.prefills)
        ]
        decodes = [
            sim(*disagg.connector("kv_consumer", conf), *conf.decode_args)
            for _ in range(conf.decodes)
        ]
        path = tmp_path / f"admin{len(admins)}.sock"
        addresses = [e.address for e in prefills], [e.address for e in decodes]
        gw = await gateway(disagg.text(conf, *addresses, admin=path))
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        admins.append(httpx.AsyncClient(transport=transport, base_url="http://kvgate"))
        return Stage(gw, admins[-1], prefills, decodes, sim())

    yield start
    for admin in admins:
        await admin.aclose()
