"""Everything one simulated engine is told at start. Built by `cli`, read by all, never changed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .model import PROFILES, Profile
from .vocabulary import OWN, Vocabulary


@dataclass(frozen=True, slots=True)
class EventSettings:
    """`--kv-events-config`, with vLLM's keys and defaults."""

    enable_kv_cache_events: bool = False
    publisher: str = "zmq"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""
    # Not keys of vLLM's config but of its environment and of older versions.
    bytes_hashes: bool = False  # VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0
    arrays: bool = False  # events as arrays, as before 0.32

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> EventSettings:
        """Raises ValueError on a key vLLM does not have."""
        known = {f.name for f in fields(cls)} - {"bytes_hashes", "arrays"}
        for key in raw:
            if key not in known:
                raise ValueError(f"unknown key `{key}` in --kv-events-config")
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """`--kv-transfer-config` as far as the simulated hand-over goes."""

    connector: str
    role: str = "kv_both"
    engine_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    load_failure_policy: str = "fail"
    lease_s: float = 30.0
    side_host: str = "127.0.0.1"
    side_port: int = 0
    handshake_timeout_s: float = 5.0

    @property
    def push(self) -> bool:
        """Whether the prefill engine writes, rather than the decode engine reads."""
        return self.connector == "NixlPushConnector"

    @classmethod
    def parse(cls, raw: Mapping[str, Any], host: str, port: int) -> TransferSettings:
        """Raises ValueError for another connector, role or policy than the engine simulates."""
        connector = str(raw.get("kv_connector", ""))
        if connector not in ("NixlConnector", "NixlPullConnector", "NixlPushConnector"):
            raise ValueError(f"kv_connector `{connector}` is not simulated, only NixlConnector "
                             "and NixlPushConnector")
        role = str(raw.get("kv_role", "kv_both"))
        if role not in ("kv_producer", "kv_consumer", "kv_both"):
            raise ValueError(f"kv_role `{role}` is none of kv_producer, kv_consumer, kv_both")
        policy = str(raw.get("kv_load_failure_policy", "fail"))
        if policy not in ("fail", "recompute"):
            raise ValueError(f"kv_load_failure_policy `{policy}` is neither fail nor recompute")
        extra = raw.get("kv_connector_extra_config") or {}
        return cls(
            connector, role, str(raw.get("engine_id") or uuid.uuid4()), policy,
            float(extra.get("kv_lease_duration", 30)), host, port,
            float(extra.get("handshake_timeout", 5)),
        )


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter, served under its own name; `id` counts from 1."""

    name: str
    path: str
    id: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults are vLLM's where vLLM has the option."""

    model: str = "sim"
    served_model_names: tuple[str, ...] = ("sim",)
    loras: tuple[Lora, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    api_keys: tuple[str, ...] = ()
    keepalive_s: float = 5.0
    ready_delay_s: float = 0.0
    profile: Profile = PROFILES["zero"]
    time_scale: float = 1.0
    seed: int = 0
    block_size: int = 16
    num_gpu_blocks: int = 16_385
    max_model_len: int = 32_768
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2_048
    tokens: int = 16
    reasoning_tokens: int = 0
    data_parallel_size: int = 1
    enable_prompt_tokens_details: bool = False
    enable_request_id_headers: bool = False
    enable_server_load_tracking: bool = False
    events: EventSettings = EventSettings()
    transfer: TransferSettings | None = None
    fragile: bool = False
    faults: tuple[str, ...] = ()
    record: bool = False
    vocabulary: Vocabulary = OWN
