"""What a new configuration changes against the one that runs. Pure.

Almost everything is swapped in place; only what a process takes on when it is born needs a new one.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.conf.errors import ConfigErrors, one_line
from gateway.conf.model import Config, EngineLine

# Fields of Config that a worker takes on when it is born.
BORN_WITH = ("user", "group", "rlimit_nofile", "env", "kv_index_bytes")
SHOWN_MAX = 40  # changes named in the log line; the rest is counted


def needs_new_workers(old: Config, new: Config) -> bool:
    """Whether workers must be replaced rather than told."""
    if any(getattr(old, name) != getattr(new, name) for name in BORN_WITH):
        return True
    # The memory of a limit's zone is inherited: a worker cannot be given more of it later.
    zones = new.req_zones.keys() - old.req_zones.keys()
    if zones or new.conn_zones.keys() - old.conn_zones.keys():
        return True
    # Keys that only root can read are read before a newborn worker becomes its user.
    secured = any(server.ssl_certificate for server in new.servers)
    return bool(new.user) and secured


def changes(old: Config, new: Config) -> list[str]:
    """What differs, in words."""
    found = []
    before, after = _addresses(old), _addresses(new)
    found += [f"listener {tag} added" for tag in sorted(after - before)]
    found += [f"listener {tag} removed" for tag in sorted(before - after)]
    for name in sorted(new.upstreams.keys() - old.upstreams.keys()):
        found.append(f"upstream `{name}` added")
    for name in sorted(old.upstreams.keys() - new.upstreams.keys()):
        found.append(f"upstream `{name}` removed")
    for name in sorted(old.upstreams.keys() & new.upstreams.keys()):
        found += _engines(name, old.upstreams[name].engines, new.upstreams[name].engines)
    if old.worker_processes != new.worker_processes:
        found.append(f"workers {old.worker_processes} -> {new.worker_processes}")
    return found


def sentence(found: list[str]) -> str:
    if not found:
        return "no engine or listener changed"
    more = len(found) - SHOWN_MAX
    return "; ".join(found[:SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")


def _addresses(config: Config) -> set[str]:
    return {listen.address for server in config.servers for listen in server.listens}


def _engines(upstream: str, old: tuple[EngineLine, ...], new: tuple[EngineLine, ...]) -> list[str]:
    before = {line.address: line for line in old}
    after = {line.address: line for line in new}
    found = [f"`{upstream}`: engine {a} added" for a in after if a not in before]
    found += [f"`{upstream}`: engine {a} removed" for a in before if a not in after]
    for address, line in after.items():
        was = before.get(address)
        if was is not None and _settings(was) != _settings(line):
            if was.weight != line.weight:
                found.append(f"`{upstream}`: engine {address} weight {was.weight} -> {line.weight}")
            else:
                found.append(f"`{upstream}`: engine {address} changed")
    return found


def _settings(line: EngineLine) -> EngineLine:
    """All that a line says, wherever it stands in a file."""
    return replace(line, place=None)


def refusal(error: Exception) -> list[str]:
    """Why a configuration is not taken, line by line, include chains named."""
    if not isinstance(error, ConfigErrors):
        return [str(error)]
    lines = []
    for one in error.errors:
        if one.severity == "error":
            chain = "".join(f", included from {p.file}:{p.line}" for p in one.chain)
            lines.append(one_line(one) + chain)
    return lines
