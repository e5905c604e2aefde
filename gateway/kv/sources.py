"""Where an engine's KV events come from: what it says, what the configuration says, what can be
reached. Pure.

vLLM tells endpoints as its publisher bound them: `tcp://*:5557` is any of its addresses, and
`tcp://10.0.0.5:41234` one that it took for its own, which may not be one for us.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from engines.vllm.probe import EventSource, event_sources
from gateway.conf.model import EngineLine

RANKS_MAX = 1024
ENDPOINT_MAX = 512
ANY = ("*", "0.0.0.0", "::", "[::]")
_LOOPBACK_NAMES = ("localhost", "ip6-localhost")


@dataclass(frozen=True, slots=True)
class Source:
    """ZMQ endpoints to connect to. `replay` "" = there is none. `topic`: prefix of its messages."""

    endpoint: str
    replay: str = ""
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a vLLM server said: the sources of its ranks, in their order, or why there are none."""

    sources: tuple[Source, ...] = ()
    why: str = ""
    final: bool = True  # it has said so itself: asking again soon would not help

    def of(self, line: EngineLine) -> tuple[Source | None, str]:
        """The source of one engine, or why it has none."""
        count = len(self.sources)
        if not count:
            return None, self.why
        if count != line.ranks:
            said = f"the server line says ranks={line.ranks}" if line.rank >= 0 else "no ranks"
            hint = f"write ranks={count}" if count > 1 else "remove ranks"
            return None, f"it has {count} data-parallel ranks, {said}; hint: {hint}"
        return self.sources[max(line.rank, 0)], ""

    def as_json(self) -> dict[str, object]:
        rows = [[s.endpoint, s.replay, s.topic] for s in self.sources]
        return {"sources": rows, "why": self.why, "final": self.final}

    @classmethod
    def of_json(cls, value: dict[str, object]) -> Found | None:
        """None where it is not what `as_json` made."""
        match value:
            case {"sources": list(rows), "why": str(why), "final": bool(final)}:
                if len(rows) <= RANKS_MAX and all(_is_row(row) for row in rows):
                    return cls(tuple(Source(*row) for row in rows), why, final)
        return None


def _is_row(row: object) -> bool:
    return isinstance(row, list) and len(row) == 3 and all(isinstance(cell, str) for cell in row)


def written(line: EngineLine) -> Source | None:
    """What the server line says."""
    return Source(line.events, line.replay) if line.events else None


def read(status: int, body: bytes) -> tuple[tuple[EventSource, ...], Found]:
    """The reply of GET /kv_event_sources: what is published, or why nothing is."""
    if status == 404:
        why = "it does not tell where it publishes (404), as older versions do not"
        return (), Found(why=f"{why}; hint: events=ENDPOINT on its server line")
    if status in (401, 403):
        why = f"it refuses to tell where it publishes ({status})"
        return (), Found(why=f"{why}; hint: set `api_key` in the upstream", final=False)
    if status != 200:
        return (), Found(why=f"asked where it publishes, it answered {status}", final=False)
    try:
        published = event_sources(body)
    except (ValueError, KeyError, TypeError, AttributeError):
        return (), Found(why="what it says of its publishers is not what vLLM says")
    if not published:
        hint = "hint: start it with --kv-events-config"
        return (), Found(why=f"it publishes no KV events; {hint}")
    if len(published) > RANKS_MAX or any(len(e.endpoint) > ENDPOINT_MAX for e in published):
        return (), Found(why="what it says of its publishers is too long")
    return published, Found()


def candidates(endpoint: str, line: EngineLine) -> tuple[list[str], str]:
    """Where to connect, the likeliest first; or why nowhere. A unix socket's engine is here."""
    scheme, mark, rest = endpoint.partition("://")
    if scheme == "ipc" and mark:
        if is_local(line):
            return [endpoint], ""
        return [], f"it publishes at {endpoint}, a file of another machine"
    if scheme != "tcp" or not mark:
        return [], f"it publishes at {endpoint}, where no other process can listen"
    host, colon, port = rest.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        return [], f"it publishes at {endpoint}, which has no port"
    host = host.strip("[]")
    own = line.host or "127.0.0.1"
    if host in ANY:
        return [tcp(own, port)], ""
    if is_loopback(host) and not is_local(line):
        return [tcp(own, port)], ""  # its own loopback is not ours
    return list(dict.fromkeys((tcp(host, port), tcp(own, port)))), ""


def tcp(host: str, port: str) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def split(endpoint: str) -> tuple[str, int]:
    """Host and port of a tcp endpoint."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)


def is_local(line: EngineLine) -> bool:
    return bool(line.unix_path) or is_loopback(line.host)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in _LOOPBACK_NAMES
