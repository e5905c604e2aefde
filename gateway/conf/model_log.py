"""What is written of requests: access logs and recordings. Frozen data only."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.conf.model_text import Template


@dataclass(frozen=True, slots=True)
class LogFormat:
    name: str
    template: Template
    escape: str = "default"  # default | json | none


@dataclass(frozen=True, slots=True)
class AccessLog:
    path: str  # "off" is an empty tuple on the location; "stderr"/"stdout" or a path
    format: LogFormat
    condition: Template | None = None  # if=: written unless the value is "" or "0"
    buffer: int = 0  # bytes kept before they are written; 0 = as usual, 1m
    flush_s: float = 0.0  # how long a line may stay in the buffer; 0 = until it is full


@dataclass(frozen=True, slots=True)
class Recording:
    """`record`; `block`: tokens of one. `client`, `session`: who asked, in which conversation."""

    path: str
    secret: str
    block: int
    client: Template
    session: Template
