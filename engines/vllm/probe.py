"""What a running vLLM server says about itself: health, models, version, cache, KV events, load.

Reading is pure (`capabilities`, `load`); `probe` and `probe_load` fetch. Nothing here assumes a
version: an endpoint that is missing or answers something unexpected is noted in `missing`, and the
fields it would have filled keep their empty values. Shapes are those of vLLM 0.32.0.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

PATHS = ("/health", "/v1/models", "/version", "/metrics", "/kv_event_sources")
REPLY_BYTES_MAX = 8 << 20  # /metrics of a large data-parallel engine is below 1 MiB


@dataclass(frozen=True, slots=True)
class ModelCard:
    id: str
    root: str  # the model folder or hub name behind the served name
    parent: str  # base model of a LoRA adapter, else ""
    max_model_len: int  # tokens; 0 = not told


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where one data-parallel rank publishes KV events, as the engine wrote it (`tcp://*:5557`)."""

    rank: int
    endpoint: str
    replay: str  # "" = no replay socket
    topic: str


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in the engine, summed over data-parallel ranks."""

    running: int
    waiting: int

    @property
    def idle(self) -> bool:
        return self.running == self.waiting == 0


@dataclass(frozen=True, slots=True)
class Capabilities:
    ready: bool
    version: str = ""
    models: tuple[ModelCard, ...] = ()
    block_size: int = 0  # tokens
    blocks: int = 0  # KV blocks on the device, per rank
    hash_algorithm: str = ""
    load: Load | None = None
    events: tuple[EventSource, ...] = ()
    missing: tuple[str, ...] = ()  # "/path: reason" for what was not told


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer to a probe; status 0 = no answer, and `body` then says why."""

    status: int
    body: bytes


def capabilities(replies: Mapping[str, Reply]) -> Capabilities:
    """Reads the answers of `PATHS`. Never raises on what an engine sent."""
    missing = []

    def read(path: str) -> bytes | None:
        reply = replies.get(path, Reply(0, b"not asked"))
        if reply.status == 200:
            return reply.body
        why = f"HTTP {reply.status}" if reply.status else reply.body.decode("utf-8", "replace")
        missing.append(f"{path}: {why}")
        return None

    ready = read("/health") is not None
    fields: dict[str, object] = {}
    for path, reader in (
        ("/v1/models", _models),
        ("/version", _version),
        ("/metrics", _metrics),
        ("/kv_event_sources", _event_sources),
    ):
        body = read(path)
        if body is None:
            continue
        try:
            fields.update(reader(body))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            missing.append(f"{path}: not what vLLM answers ({type(error).__name__}: {error})")
    return Capabilities(ready=ready, missing=tuple(missing), **fields)  # type: ignore[arg-type]


def load(metrics: str) -> Load | None:
    """The load in a /metrics text; None where the engine does not tell it."""
    samples = list(_samples(metrics))
    running = _sum(samples, "vllm:num_requests_running")
    waiting = _sum(samples, "vllm:num_requests_waiting")
    return None if running is None else Load(running, waiting or 0)


async def probe(client: httpx.AsyncClient, base_url: str) -> Capabilities:
    """Asks one engine everything at once; engines that do not answer come back not ready."""
    replies = await asyncio.gather(*(_fetch(client, base_url + path) for path in PATHS))
    return capabilities(dict(zip(PATHS, replies, strict=True)))


async def probe_load(client: httpx.AsyncClient, base_url: str) -> Load | None:
    reply = await _fetch(client, f"{base_url}/metrics")
    return load(reply.body.decode("utf-8", "replace")) if reply.status == 200 else None


async def _fetch(client: httpx.AsyncClient, url: str) -> Reply:
    try:
        async with client.stream("GET", url) as response:
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > REPLY_BYTES_MAX:
                    return Reply(0, f"more than {REPLY_BYTES_MAX} bytes".encode())
            return Reply(response.status_code, bytes(body))
    except httpx.HTTPError as error:
        return Reply(0, f"{type(error).__name__}: {error}".encode())


def _models(body: bytes) -> dict[str, object]:
    cards = tuple(
        ModelCard(
            id=str(card["id"]),
            root=str(card.get("root") or ""),
            parent=str(card.get("parent") or ""),
            max_model_len=int(card.get("max_model_len") or 0),
        )
        for card in json.loads(body)["data"]
    )
    return {"models": cards}


def _version(body: bytes) -> dict[str, object]:
    return {"version": str(json.loads(body)["version"])}


def _metrics(body: bytes) -> dict[str, object]:
    text = body.decode("utf-8", "replace")
    fields: dict[str, object] = {"load": load(text)}
    for sample in _samples(text):
        if sample.name == "vllm:cache_config_info":
            fields["block_size"] = _count(sample.labels.get("block_size"))
            fields["blocks"] = _count(sample.labels.get("num_gpu_blocks"))
            fields["hash_algorithm"] = sample.labels.get("prefix_caching_hash_algo", "")
            break
    return fields


def event_sources(body: bytes) -> tuple[EventSource, ...]:
    """Who publishes, by rank, of `{"0": {"publisher": "zmq", "endpoint": ..., "replay_endpoint":
    ..., "topic": ...}}`. Raises ValueError, KeyError, TypeError, AttributeError where it is not
    what vLLM answers.
    """
    return tuple(
        EventSource(
            rank=int(rank),
            endpoint=str(source["endpoint"]),
            replay=str(source.get("replay_endpoint") or ""),
            topic=str(source.get("topic") or ""),
        )
        for rank, source in sorted(json.loads(body).items(), key=lambda item: int(item[0]))
        if source.get("publisher", "zmq") == "zmq" and source.get("endpoint")
    )


def _event_sources(body: bytes) -> dict[str, object]:
    return {"events": event_sources(body)}


def _samples(text: str) -> Iterable[Sample]:
    for family in text_string_to_metric_families(text):
        yield from family.samples


def _sum(samples: Iterable[Sample], name: str) -> int | None:
    values = [sample.value for sample in samples if sample.name == name]
    return round(sum(values)) if values else None


def _count(label: str | None) -> int:
    return int(label) if label and label.isdigit() else 0
