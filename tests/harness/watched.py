"""A gateway in this process that follows simulated engines, and what it thinks of their caches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx

from gateway.conf import load_text
from gateway.fleet.engine import Engine

TEXT = "the water of the land over the sea " * 30


def conf(*servers: str, more: str = "", port: int = 0) -> str:
    lines = " ".join(f"server {server};" for server in servers)
    return (
        f"upstream main {{ {lines} kv_aware; tokenizer remote; health_check off; {more} }}"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://main; }} }}"
        "server { listen 127.0.0.1:0; location / { admin; } admin_token t;"
        " location = /metrics { metrics; } }"
    )


class Watched:
    """An in-process gateway and what it thinks of its engines."""

    def __init__(self, running: Any) -> None:
        self.running = running
        self.app = running.app

    @property
    def engines(self) -> tuple[Engine, ...]:
        engines: tuple[Engine, ...] = self.app.table.groups["main"].engines
        return engines

    def state(self, at: int = 0) -> tuple[str, str]:
        state: tuple[str, str] = self.app.caches.state(self.engines[at])
        return state

    def matched(self, prompt: Any) -> list[int]:
        """Tokens of a prompt that the index expects, by engine."""
        slots = [engine.index_slot for engine in self.engines]
        found = self.app.table.index.match(prompt, slots, time.monotonic())
        return [match.device for match in found]

    async def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 10.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            last = [self.state(at) for at in range(len(self.engines))]
            assert time.monotonic() < deadline, f"{what}: {last}"
            await asyncio.sleep(0.01)
        return value

    async def wait(self, state: str, word: str = "", at: int = 0) -> None:
        await self.until(
            lambda: self.state(at)[0] == state and word in self.state(at)[1],
            f"engine {at} to be {state} ({word})",
        )

    async def complete(self, text: str = TEXT, **headers: str) -> httpx.Response:
        body = {"model": "m", "prompt": text, "temperature": 0, "max_tokens": 2}
        reply = await self.running.client.post("/v1/completions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        return reply  # type: ignore[no-any-return]

    def status(self, at: int = 0) -> dict[str, Any]:
        """What /kvgate/status says of its cache."""
        row: dict[str, Any] = self.app.caches.status(self.engines[at])
        return row

    def apply(self, http: str) -> None:
        """A reload."""
        self.app.apply(load_text("http { " + http + " }"))
