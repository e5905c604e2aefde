"""What the daemon says of itself: the core's figures, put together by tier. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvbm.conf.model import Config

Figures = Mapping[str, int | str]
Namespace = tuple[int, bytes, bytes, bytes]
TIERS = ("host", "disk", "remote")


@dataclass(frozen=True, slots=True)
class Life:
    """The process itself. Times are seconds."""

    pid: int
    version: str
    started_at: float  # since the epoch
    uptime_s: float


def status(
    config: Config, life: Life, figures: Figures, namespaces: list[Namespace]
) -> dict[str, Any]:
    """The document of `/status`."""
    return {
        "version": life.version,
        "pid": life.pid,
        "started_at": life.started_at,
        "uptime_s": round(life.uptime_s, 3),
        "file": config.file,
        "socket": config.socket,
        "state": state(config, figures),
        "tiers": {name: _tier(name, figures) for name in TIERS if _has(name, figures)},
        "namespaces": [namespace(row) for row in namespaces],
        "counters": {
            name: value for name, value in figures.items() if name.partition("_")[0] not in TIERS
        },
    }


def state(config: Config, figures: Figures) -> str:
    """`ok`, or `degraded` where a tier that should store does not."""
    disk = config.disk is not None and not figures.get("disk_good", 0)
    remote = config.remote is not None and not figures.get("remote_good", 1)
    return "degraded" if disk or remote else "ok"


def _has(tier: str, figures: Figures) -> bool:
    return any(name.startswith(f"{tier}_") for name in figures)


def _tier(tier: str, figures: Figures) -> dict[str, int | str]:
    mark = f"{tier}_"
    return {name.removeprefix(mark): v for name, v in figures.items() if name.startswith(mark)}


def namespace(row: Namespace) -> dict[str, Any]:
    number, fingerprint, probe, descriptor = row
    return {
        "number": number,
        "fingerprint": fingerprint.hex(),
        "probe": probe.hex(),
        "descriptor": _descriptor(descriptor),
    }


def _descriptor(text: bytes) -> Any:
    """Engines write JSON; another text is shown as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text.decode("utf-8", "replace")
