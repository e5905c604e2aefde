"""A gateway in this process in front of simulated engines, all on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import kv, model_folder

from engines.sim.process import SimEngine


@pytest.fixture
def sim() -> Iterator[Callable[..., SimEngine]]:
    """`sim(*args)` starts a simulated engine in a thread."""
    with ExitStack() as stack:

        def start(*args: object) -> SimEngine:
            wanted = ["--enable-prompt-tokens-details", "--record", *args]
            return stack.enter_context(SimEngine(*wanted, thread=True))

        yield start


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model."""
    return model_folder.write(tmp_path_factory.mktemp("model"))


@dataclass
class Served:
    app: Any
    client: httpx.AsyncClient
    admin: httpx.AsyncClient
    running: Any

    async def status(self) -> dict[str, Any]:
        """The upstream as `/kvgate/status` has it."""
        document = (await self.admin.get("/kvgate/status")).json()
        return dict(document["upstreams"]["sim"])


@pytest.fixture
async def serve(gateway: Callable[..., Any], tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """`await serve(engines, upstream=, location=, lane=)`: a gateway in front of them, its admin
    listener as the client `admin`.
    """
    admins: list[httpx.AsyncClient] = []

    async def start(engines: list[SimEngine], **how: str) -> Any:
        path = tmp_path / f"admin{len(admins)}.sock"
        gw = await gateway(kv.conf([engine.address for engine in engines], path, **how))
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        admins.append(httpx.AsyncClient(transport=transport, base_url="http://kvgate"))
        return Served(gw.app, gw.client, admins[-1], gw)

    yield start
    for admin in admins:
        await admin.aclose()
