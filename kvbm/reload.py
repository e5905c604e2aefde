"""What a new configuration changes in a running daemon, and what needs a restart. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from kvbm.conf.model import Config, Disk

# Fields that take effect at once; the others are those of the running process until it restarts.
LIVE = (
    "error_log", "error_level", "admin_token", "load_timeout_s", "store_timeout_s", "allow_uids",
)  # fmt: skip
LIVE_DISK = ("verify_s", "verify_rate", "reuse", "write_rate")


@dataclass(frozen=True, slots=True)
class Changes:
    """`config`: what holds from now on; `live` and `restart`: names of what differs."""

    config: Config
    live: tuple[str, ...]
    restart: tuple[str, ...]


def changes(old: Config, new: Config) -> Changes:
    differing = [f.name for f in fields(Config) if getattr(old, f.name) != getattr(new, f.name)]
    live = [name for name in differing if name in LIVE]
    restart = [name for name in differing if name not in (*LIVE, "file", "disk")]
    disk = old.disk
    if old.disk is not None and new.disk is not None:
        was, now = old.disk, new.disk
        names = [f.name for f in fields(Disk) if getattr(was, f.name) != getattr(now, f.name)]
        live += [f"disk.{name}" for name in names if name in LIVE_DISK]
        restart += [f"disk.{name}" for name in names if name not in LIVE_DISK]
        disk = replace(was, **{name: getattr(now, name) for name in LIVE_DISK})
    elif old.disk != new.disk:
        restart.append("disk")
    kept = replace(old, disk=disk, **{name: getattr(new, name) for name in LIVE})
    return Changes(kept, tuple(live), tuple(restart))
