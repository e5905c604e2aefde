"""A `server` line of an upstream -> `model.EngineLine`, one for each data-parallel rank."""

from __future__ import annotations

from dataclasses import replace

from gateway.conf import units
from gateway.conf.errors import Report, quoted
from gateway.conf.model import EngineLine
from gateway.conf.node import Node

_CONNECTS = (
    "write the engine's host: the engine binds (`--kv-events-config` with endpoint tcp://*:PORT), "
    "the gateway connects; a publisher that connects by itself cannot be followed"
)


def resolve_engine(line: Node, report: Report) -> EngineLine | None:
    """The server itself; `ranks_of` gives the engines in it. None: its address is wrong."""
    token = line.token("address")
    try:
        address = units.address(_without_scheme(token.text))
    except units.BadValue as error:
        report.error(
            token, f'"server" must be {error.expected}, got {quoted(token.text)}', error.hint
        )
        return None
    if not address.unix_path and address.port == 0:
        report.error(token, '"server" must have a port from 1 to 65535')
        return None
    if not address.unix_path and address.port < 0:
        report.warn(token, f"{quoted(token.text)} has no port, so it is 80", "vLLM listens on 8000")
    ranks = line.get("ranks", 0)
    events, replay = _endpoint(line, "events", report), _endpoint(line, "replay", report)
    _check_events(line, ranks, report)
    kvbm, kvbm_replay = _endpoint(line, "kvbm", report), _endpoint(line, "kvbm_replay", report)
    if line.get("kvbm_replay") and not line.get("kvbm"):
        report.error(line.token("kvbm_replay"), '"kvbm_replay" needs "kvbm"')
    return EngineLine(
        address=token.text,
        host=address.host,
        port=0 if address.unix_path else (80 if address.port < 0 else address.port),
        unix_path=address.unix_path,
        weight=line.get("weight", 1),
        max_fails=line.get("max_fails", 1),
        fail_timeout_s=line.get("fail_timeout", 10.0),
        max_conns=line.get("max_conns", 0),
        backup=line.get("backup", False),
        down=line.get("down", False),
        role=line.get("role", "both"),
        events=events,
        replay=replay,
        kvbm=kvbm,
        kvbm_replay=kvbm_replay,
        ranks=max(ranks, 1),
        place=line.place,
    )


def ranks_of(server: EngineLine) -> tuple[EngineLine, ...]:
    """The engines of a server: itself, or one for each rank, whose event ports follow each other
    as vLLM's do.
    """
    if server.ranks < 2:
        return (server,)
    return tuple(
        replace(
            server,
            address=f"{server.address}#{rank}",
            rank=rank,
            events=_offset(server.events, rank),
            replay=_offset(server.replay, rank),
        )
        for rank in range(server.ranks)
    )


def _offset(endpoint: str, rank: int) -> str:
    if not endpoint.startswith("tcp://"):
        return endpoint
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}"


def _without_scheme(text: str) -> str:
    scheme, mark, rest = text.partition("://")
    if mark and scheme.lower() in ("http", "https"):
        hint = f"write {rest.split('/')[0]} here and the scheme in proxy_pass: {scheme}://NAME"
        raise units.BadValue("host:port without a scheme", hint)
    if "/" in text and not text.startswith("unix:"):
        raise units.BadValue("host:port without a path", "a path is written in proxy_pass")
    return text


def _endpoint(line: Node, name: str, report: Report) -> str:
    """The endpoint a parameter names, "" where it is not there or wrong."""
    endpoint: str = line.get(name, "")
    if not endpoint:
        return ""
    expected, hint = "tcp://HOST:PORT or ipc://PATH", ""
    scheme, mark, rest = endpoint.partition("://")
    good = bool(mark and rest and scheme in ("tcp", "ipc"))
    if good and scheme == "tcp":
        try:
            good = units.address(rest).port > 0
        except units.BadValue:
            good = False
        if rest.startswith(("*", "0.0.0.0", "[::]")):
            good, hint = False, _CONNECTS
    if good:
        return endpoint
    message = f'"server" parameter {quoted(f"{name}={endpoint}")}: expected {expected}'
    report.error(line.token(name), message, hint)
    return ""


def _check_events(line: Node, ranks: int, report: Report) -> None:
    """What `events`, `replay` and `ranks` say together."""
    events, replay = line.get("events", ""), line.get("replay", "")
    if replay and not events:
        message = '"replay" needs "events"'
        report.error(line.token("replay"), message, "without both, the engine is asked")
    if ranks < 2:
        return
    for name, endpoint in (("events", events), ("replay", replay)):
        if endpoint.startswith("ipc"):
            message = f'"{name}" cannot be an ipc endpoint where there are ranks'
            report.error(line.token(name), message, "each rank takes the next TCP port")
    ports = [int(e.rpartition(":")[2]) for e in (events, replay) if _ends_with_port(e)]
    if len(ports) == 2 and abs(ports[0] - ports[1]) < ranks:
        message = f'"events" and "replay" are closer than the {ranks} ports that ranks take'
        hint = "each rank takes the next port: leave a gap as wide as ranks"
        report.error(line.token("replay"), message, hint)
    elif ports and max(ports) + ranks - 1 > 65535:
        report.error(line.token("ranks"), "the ports of the last ranks are above 65535")


def _ends_with_port(endpoint: str) -> bool:
    return endpoint.startswith("tcp://") and endpoint.rpartition(":")[2].isdigit()
