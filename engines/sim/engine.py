"""The simulated engine as a whole: its ranks, its faults, its hand-over, what it remembers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from typing import Any

from .connection import Site
from .core import Core
from .events import Publisher
from .faults import Faults
from .responses import Store
from .settings import Settings
from .transfer import Transfer
from .wire import Reply, Request

VLLM_VERSION = "0.32.0"
DEATH_GRACE_S = 0.1  # the reply that tells of the death still goes out


# What a gateway asks by itself, at times of its own, it asks under its own name.
_BY_ITSELF = "kvgate"


class Engine:
    """Built inside a running loop; `start` before the first request, `stop` at the end."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.publishers = [
            Publisher(settings.events, rank, settings.block_size, settings.host)
            if settings.events.enable_kv_cache_events else None
            for rank in range(settings.data_parallel_size)
        ]
        self.cores = [Core(settings, rank, p) for rank, p in enumerate(self.publishers)]
        self.faults = Faults(settings.faults, self)
        for publisher in self.publishers:
            if publisher is not None:
                publisher.sending = self.faults.sending
                publisher.replaying = self.faults.replaying
        self.transfer = None if settings.transfer is None else Transfer(settings, self.cores)
        self.ended = asyncio.Event()  # the process is to end, having died of a request
        if self.transfer is not None:
            self.transfer.on_death = self._dies
        self.responses = Store()
        digest = hashlib.sha256(f"{settings.model}{settings.block_size}".encode()).hexdigest()
        self.fingerprint = f"vllm-{VLLM_VERSION}-{digest[:8]}"
        self.site: Site | None = None
        self.last_request: dict[str, Any] | None = None
        self.in_flight = 0

    async def start(self) -> None:
        for core in self.cores:
            core.start()
        if self.transfer is not None:
            await self.transfer.start()

    async def stop(self) -> None:
        if self.transfer is not None:
            await self.transfer.stop()
        await asyncio.gather(*(core.stop() for core in self.cores))
        for publisher in self.publishers:
            if publisher is not None:
                publisher.close()

    async def before_tokens(self, reply: Reply) -> None:
        """The place where a scripted fault keeps a request from the engine for a while."""
        if reply.delay_s > 0:
            await asyncio.sleep(reply.delay_s)

    def id_headers(self, request: Request) -> list[tuple[str, str]]:
        if not self.settings.enable_request_id_headers:
            return []
        return [("x-request-id", request.get("x-request-id") or secrets.token_hex(8))]

    def load_headers(self, request: Request) -> list[tuple[str, str]]:
        """The load report (ORCA) that whole chat replies carry when asked for."""
        form = (request.get("endpoint-load-metrics-format") or "").upper()
        values = {
            "num_requests_waiting": float(sum(len(c.scheduler.waiting) for c in self.cores)),
            "kv_cache_usage_perc": max(c.cache.usage() for c in self.cores),
        }
        if form == "JSON":
            return [("endpoint-load-metrics", f"JSON {json.dumps({'named_metrics': values})}")]
        if form == "TEXT":
            text = ", ".join(f"named_metrics.{k}={v}" for k, v in values.items())
            return [("endpoint-load-metrics", f"TEXT {text}")]
        return []

    def note(self, request: Request) -> None:
        """Keeps the latest request that is some client's, with `--record`."""
        if self.settings.record and request.get("user-agent") != _BY_ITSELF:
            self.last_request = {
                "method": request.method, "target": request.target,
                "headers": [list(h) for h in request.headers],
                "body": request.body.decode("utf-8", "replace"),
            }

    def restart(self) -> None:
        """Everything in memory is lost, as by a crash and a new start; the port stays."""
        for core in self.cores:
            core.restart()
        for publisher in self.publishers:
            if publisher is not None:
                publisher.restart()
        if self.transfer is not None:
            self.transfer.restart()
        self.responses = Store()

    def die(self, message: str) -> None:
        """EngineCore is gone: health says 503, every request 500, until the process ends."""
        for core in self.cores:
            core.restart()
            core.dead = message

    def _dies(self, message: str) -> None:
        self.die(message)
        asyncio.get_running_loop().call_later(DEATH_GRACE_S, self.ended.set)

    def state(self) -> dict[str, Any]:
        """GET /sim/state: what a test wants to know of the engine at this moment."""
        site = self.site
        caches = [core.cache for core in self.cores]
        return {
            "running": sum(len(c.scheduler.running) for c in self.cores),
            "waiting": sum(len(c.scheduler.waiting) for c in self.cores),
            "remote": sum(len(c.scheduler.remote) for c in self.cores),
            "aborted": sum(c.aborted for c in self.cores),
            "steps": sum(c.steps for c in self.cores),
            "late_s": sum(c.late_s for c in self.cores),
            "in_flight": self.in_flight,
            "connections": 0 if site is None else len(site.connections),
            "accepted": 0 if site is None else site.accepted,
            "bodies": 0 if site is None else site.bodies,
            "disconnects": 0 if site is None else site.disconnects,
            "blocks_used": sum(c.capacity - c.free for c in caches),
            "blocks_total": sum(c.capacity for c in caches),
            "blocks_cached": sum(sum(c.cached().values()) for c in caches),
            "kv_cache_usage": max(c.usage() for c in caches),
            "event_seq": [None if p is None else p.next_seq for p in self.publishers],
            "transfer": None if self.transfer is None else self.transfer.state(),
            "faults": self.faults.state(),
            "last_request": self.last_request,
            "dead": self.cores[0].dead,
        }
