"""The KV connectors of an engine, NIXL between engines and offloading below one, as vLLM's JSON.

Pure. One connector is written by itself, several through MultiConnector, which loads from the
first that has the tokens and saves to all: so the order here, NIXL first, is part of the meaning
(vLLM 0.32, multi_connector.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}


@dataclass(frozen=True, slots=True)
class Nixl:
    """KV hand-over between engines. `host:port` is the side channel; rank r of several: port + r.

    `pull`: the decode engine reads. `push`: the prefill engine writes; a router that starts both
    legs at once must know its `engine_id` before.
    """

    mode: Literal["pull", "push"] = "pull"
    host: str = "127.0.0.1"
    port: int = 5600
    lease_s: int = 30  # how long prefilled blocks wait for a decode engine to ask for them
    on_load_failure: Literal["fail", "recompute"] = "recompute"
    engine_id: str = ""  # "" = vLLM makes one up at each start
    buffer_device: str = ""  # "cpu" stages through host memory; "" = vLLM's default
    ucx_tls: str = ""  # "" = UCX chooses
    ucx_devices: str = ""


@dataclass(frozen=True, slots=True)
class Offload:
    """vLLM's offloading connector: a host tier of `host_bytes`, below it any secondary tiers."""

    host_bytes: int
    spec_name: str = ""  # "" = vLLM's own
    spec_module: str = ""
    tiers: tuple[Mapping[str, object], ...] = ()  # `secondary_tiers`, in lookup order
    decode_blocks: bool = False  # offload what decoding fills, too


def transfer_config(
    role: str, nixl: Nixl | None, offload: Offload | None
) -> dict[str, object] | None:
    """The value of `--kv-transfer-config`, or None where no connector is wanted."""
    connectors = []
    if nixl is not None:
        connectors.append(_nixl(KV_ROLES[role], nixl))
    if offload is not None:
        connectors.append(_offloading(offload))
    if not connectors:
        return None
    if len(connectors) == 1:
        return connectors[0]
    multi: dict[str, object] = {
        "kv_connector": "MultiConnector",
        "kv_role": KV_ROLES[role],
        "kv_connector_extra_config": {"connectors": connectors},
    }
    if nixl is not None:
        multi["kv_load_failure_policy"] = nixl.on_load_failure
    return multi


def _nixl(kv_role: str, nixl: Nixl) -> dict[str, object]:
    name = {"pull": "NixlConnector", "push": "NixlPushConnector"}[nixl.mode]
    config: dict[str, object] = {
        "kv_connector": name,
        "kv_role": kv_role,
        "kv_load_failure_policy": nixl.on_load_failure,
        "kv_connector_extra_config": {"kv_lease_duration": nixl.lease_s},
    }
    if nixl.engine_id:
        config["engine_id"] = nixl.engine_id
    if nixl.buffer_device:
        config["kv_buffer_device"] = nixl.buffer_device
    return config


def _offloading(offload: Offload) -> dict[str, object]:
    extra: dict[str, object] = {"cpu_bytes_to_use": offload.host_bytes}
    if offload.spec_name:
        extra["spec_name"] = offload.spec_name
    if offload.spec_module:
        extra["spec_module_path"] = offload.spec_module
    if offload.tiers:
        extra.setdefault("spec_name", "TieringOffloadingSpec")
        extra["secondary_tiers"] = [dict(tier) for tier in offload.tiers]
    if offload.decode_blocks:
        extra["offload_prompt_only"] = False
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }
