"""What a configuration of kvbm means, once every value is checked. Frozen data only.

Times are seconds (`_s`), sizes are bytes, an absent limit is 0.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: `unix_path`, or TCP."""

    host: str = ""
    port: int = 0
    unix_path: str = ""

    def __str__(self) -> str:
        if self.unix_path:
            return f"unix:{self.unix_path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Host:
    """The arena. `spill`: its blocks go to disk when they leave it, not when they come."""

    size: int
    spill: bool = False


@dataclass(frozen=True, slots=True)
class Disk:
    """`reuse`: how often a block must be offered until it is written. `segment` 0 = by the size."""

    path: str
    size: int
    reuse: int = 1
    write_rate: int = 0
    io: str = "auto"
    direct: str = "auto"
    depth: int = 32
    buffers: int = 128 << 20
    backlog: int = 2 << 30
    segment: int = 0
    copy_threads: int = 2
    sync_s: float = 1.0
    verify_s: float = 0.0
    verify_rate: int = 50 << 20
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Remote:
    """`slow_s`, `refresh_s` and `bundle`: 0 = off."""

    url: str
    endpoint: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: str = ""
    upload: str = "reuse"
    bundle: int = 0
    bundle_below: int = 0
    bundle_wait_s: float = 0.2
    timeout_s: float = 2.0
    concurrency: int = 16
    failures: int = 5
    pause_s: float = 10.0
    slow_s: float = 0.0
    refresh_s: float = 60.0
    known_blocks: int = 1 << 22


@dataclass(frozen=True, slots=True)
class Events:
    """ZeroMQ endpoints as written. `replay` "" = none, `model` "" = all."""

    endpoint: str
    replay: str = ""
    topic: str = ""
    model: str = ""
    buffer: int = 10_000


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration. `lookup_blocks` 0 = by the tiers' sizes."""

    file: str
    socket: str
    socket_mode: int = 0o600
    socket_token: str = ""
    allow_uids: tuple[int, ...] = ()
    connections: int = 256
    load_timeout_s: float = 2.0
    store_timeout_s: float = 10.0
    lookup_blocks: int = 0
    admin: tuple[Address, ...] = ()
    admin_token: str = ""
    metrics: tuple[Address, ...] = ()
    events: tuple[Events, ...] = ()
    host: Host | None = None
    disk: Disk | None = None
    remote: Remote | None = None
    error_log: str = "stderr"
    error_level: str = "notice"
    pid: str = ""
    prefix: str = ""
