"""What tests of disaggregated serving share: engines that hand over, configuration, requests."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEXT = "the water of the land over the sea " * 12
_NUMBERS = itertools.count()
ENGINE = ("sim", "--tokens", "12", "--enable-prompt-tokens-details", "--record")


@dataclass(frozen=True)
class Conf:
    """A stage. `upstream`, `location`: more directives; `*_args`: of the engines."""

    prefills: int = 1
    decodes: int = 1
    mode: str = "always"
    lane: str = "express"
    tokenizer: str = "off"
    upstream: str = ""
    location: str = ""
    server: str = ""  # parameters of every server line
    lease_s: float = 30.0  # of the engines
    policy: str = "recompute"
    handshake_s: float = 0.3
    connector: str = "NixlConnector"
    prefill_args: tuple[object, ...] = ()
    decode_args: tuple[object, ...] = ()


def connector(role: str, conf: Conf) -> tuple[str, str]:
    extra = {"kv_lease_duration": conf.lease_s, "handshake_timeout": conf.handshake_s}
    value = {"kv_connector": conf.connector, "kv_role": role,
             "kv_load_failure_policy": conf.policy, "kv_connector_extra_config": extra}  # fmt: skip
    return "--kv-transfer-config", json.dumps(value)


def text(conf: Conf, prefills: list[str], decodes: list[str], *, admin: Path) -> str:
    """An http block with the upstream `sim`, in a location that shows receipts."""
    lines = [f"server {address} role=prefill {conf.server};" for address in prefills]
    lines += [f"server {address} role=decode {conf.server};" for address in decodes]
    lease = "" if "kv_lease" in conf.upstream else f"kv_lease {conf.lease_s * 1000:.0f}ms;"
    express = "off" if conf.lane == "starlette" else "on"
    return (
        f"upstream sim {{ {' '.join(lines)} kv_aware; disaggregate {conf.mode}; {lease}"
        f" health_check off; tokenizer {conf.tokenizer}; {conf.upstream} }}"
        f"server {{ listen 127.0.0.1:0; location / {{ proxy_pass http://sim;"
        f" express {express}; expose_receipt on; {conf.location} }} }}"
        f"server {{ listen unix:{admin}; location / {{ admin; }}"
        " location = /metrics { metrics; } }"
    )


def fresh() -> dict[str, Any]:
    """A request whose prompt no cache holds."""
    return completion(f"{next(_NUMBERS)} {TEXT}")


def completion(prompt: Any = TEXT, **more: Any) -> dict[str, Any]:
    return {"model": "sim", "prompt": prompt, "temperature": 0, "max_tokens": 8, **more}


def body(path: str, prompt: str = TEXT, **more: Any) -> dict[str, Any]:
    """A request of any of the endpoints."""
    if path == "/v1/completions":
        return completion(prompt, **more)
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    said: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
    if path == "/v1/responses":
        said = {"input": prompt}
    return {"model": "sim", "temperature": 0, limit: 8, **said, **more}


def said(value: dict[str, Any]) -> str:
    """The text of an answer of any of the endpoints."""
    if "choices" in value:
        choice = value["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    found = value.get("content") or value["output"][0]["content"]
    return str(found[0]["text"])


def metric(engine: Any, name: str, label: str = "") -> float:
    for line in engine.metrics().splitlines():
        if line.startswith(f"vllm:{name}{{") and label in line:
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no metric {name} {label}")
