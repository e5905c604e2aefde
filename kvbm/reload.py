"""What a new configuration changes in a running daemon, and what needs a restart. Pure.

Both are told by the names of the directives, those of a block as `disk.verify`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from kvbm.conf.model import Config, Disk

# Fields that take effect at once; the others are those of the running process until it restarts.
LIVE = (
    "error_log", "error_level", "admin_token", "load_timeout_s", "store_timeout_s", "allow_uids",
)  # fmt: skip
# Directives that are called otherwise than the fields; `_s` is cut off the others.
NAMES = {
    "error_level": "error_log", "allow_uids": "allow_user", "socket_mode": "socket",
    "reuse": "admit", "verify_rate": "verify",
}  # fmt: skip
LIVE_DISK = ("verify_s", "verify_rate", "reuse", "write_rate")
NOT_TOLD = (*LIVE, "file", "prefix", "disk")  # told elsewhere, or not written in the file


@dataclass(frozen=True, slots=True)
class Changes:
    """`config`: what holds from now on; `live` and `restart`: directives that differ."""

    config: Config
    live: tuple[str, ...]
    restart: tuple[str, ...]


def directive(field: str) -> str:
    """The directive that a field comes from."""
    return NAMES.get(field, field.removesuffix("_s"))


def changes(old: Config, new: Config) -> Changes:
    differing = [f.name for f in fields(Config) if getattr(old, f.name) != getattr(new, f.name)]
    live = [directive(name) for name in differing if name in LIVE]
    restart = [_restarted(name, old, new) for name in differing if name not in NOT_TOLD]
    disk = old.disk
    if old.disk is not None and new.disk is not None:
        was, now = old.disk, new.disk
        names = [f.name for f in fields(Disk) if getattr(was, f.name) != getattr(now, f.name)]
        live += [f"disk.{directive(name)}" for name in names if name in LIVE_DISK]
        restart += [f"disk.{directive(name)}" for name in names if name not in LIVE_DISK]
        disk = replace(was, **{name: getattr(now, name) for name in LIVE_DISK})
    elif old.disk != new.disk:
        restart.append("disk")
    kept = replace(old, disk=disk, **{name: getattr(new, name) for name in LIVE})
    return Changes(kept, tuple(dict.fromkeys(live)), tuple(dict.fromkeys(restart)))


def _restarted(name: str, old: Config, new: Config) -> str:
    """`host` has a field that comes from `disk`."""
    was, now = old.host, new.host
    if name == "host" and was and now and was.size == now.size:
        return "disk.admit"
    return directive(name)
