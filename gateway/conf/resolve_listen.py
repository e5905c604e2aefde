"""`listen` and `server_name`: addresses, who is the default, what collides."""

from __future__ import annotations

import ipaddress
import re

from gateway.conf import units
from gateway.conf.errors import Report, quoted
from gateway.conf.model import Listen, Server
from gateway.conf.node import Node
from gateway.conf.patterns import captures, compile_regex
from gateway.conf.resolve_parts import check_captures
from gateway.conf.setting import Setting

DEFAULT_BACKLOG = 2048
_WILDCARD = re.compile(
    r"(\*\.|\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*(\.\*)?|\*|[0-9a-f:.\[\]]+", re.IGNORECASE
)


def listens(server: Node, report: Report) -> tuple[Listen, ...]:
    found: list[Listen] = []
    for node in server.all("listen"):
        listen = _listen(node, report)
        if listen is None:
            continue
        same = [other for other in found if _key(other) == _key(listen) and listen.port != 0]
        if same or any(other.unix_path and other.unix_path == listen.unix_path for other in found):
            report.error(node.token("address"), f"duplicate listen {quoted(listen.address)}")
            continue
        found.append(listen)
    if not server.has("listen"):
        report.error(server.name, '"server" has no "listen"', 'add "listen 8080;"')
    return tuple(found)


def _listen(node: Node, report: Report) -> Listen | None:
    token = node.token("address")
    text = token.text
    try:
        address = _address(text)
    except units.BadValue as error:
        report.error(token, f'"listen" must be {error.expected}, got {quoted(text)}', error.hint)
        return None
    return Listen(
        address=text,
        host=address.host,
        port=0 if address.unix_path else (80 if address.port < 0 else address.port),
        unix_path=address.unix_path,
        ssl=node.get("ssl", False),
        default_server=node.get("default_server", False),
        backlog=node.get("backlog", DEFAULT_BACKLOG),
        reuseport=node.get("reuseport", False),
        place=node.place,
    )


def _address(text: str) -> units.Address:
    if re.fullmatch(r"[0-9]+", text):
        return units.address(f"0.0.0.0:{text}")
    if text == "*" or text.startswith("*:"):
        return units.address("0.0.0.0" + text[1:])
    return units.address(text)


def names(server: Node, setting: Setting) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names, and the variables that their regexes set."""
    report = setting.report
    captured: list[str] = []
    found: list[str] = []
    for node in server.all("server_name"):
        for token in node.words:
            name = token.text if token.text.startswith("~") else token.text.lower()
            if name in found:
                report.warn(token, f"server name {quoted(name)} is repeated")
            elif _name_is_good(name, token.text, report, node, len(found)):
                found.append(name)
                if name.startswith("~"):
                    captured += check_captures(captures(name[1:]), token, setting)
    # No name and the empty name are one.
    return () if found == [""] else tuple(found), tuple(dict.fromkeys(captured))


def _name_is_good(name: str, written: str, report: Report, node: Node, index: int) -> bool:
    token = next(word for word in node.words if word.text == written)
    if name.startswith("~"):
        try:
            compile_regex(name[1:], ignore_case=True)
        except units.BadValue as error:
            report.error(token, f'"server_name" must be {error.expected}', error.hint)
            return False
        return True
    if name and not _WILDCARD.fullmatch(name):
        hint = (
            "a wildcard stands for whole labels at the beginning or the end" if "*" in name else ""
        )
        hint = "leave out the port" if re.search(r":[0-9]+$", name) else hint
        message = f'"server_name" must be a name, *.NAME, NAME.* or ~REGEX, got {quoted(written)}'
        report.error(token, message, hint)
        return False
    return True


def check_listens(nodes: list[Node], servers: tuple[Server, ...], report: Report) -> None:
    """Over all servers: one default per address, one kind of socket per address, no overlaps."""
    first: dict[tuple[str, int, str], tuple[Listen, Node]] = {}
    secure: dict[tuple[str, int, str], tuple[Listen, Server]] = {}
    defaults: dict[tuple[str, int, str], Listen] = {}
    named: dict[tuple[tuple[str, int, str], str], Listen] = {}
    for server_node, server in zip(nodes, servers, strict=True):
        lines = {line.place: line for line in server_node.all("listen")}
        for listen in server.listens:
            assert listen.place is not None
            node = lines[listen.place]
            if listen.port == 0 and not listen.unix_path:
                continue
            key = _key(listen)
            other, _ = first.setdefault(key, (listen, node))
            _check_same(listen, other, node, report)
            if listen.ssl:
                _check_tls((listen, server), secure.setdefault(key, (listen, server)), node, report)
            if listen.default_server:
                twin = defaults.setdefault(key, listen)
                if twin is not listen:
                    message = f"duplicate default server for {quoted(listen.address)}"
                    report.error(node.token("default_server"), message, _first(twin))
            for name in server.names or ("",):
                twin = named.setdefault((key, name), listen)
                if twin is not listen:
                    message = f"server name {quoted(name)} on {quoted(listen.address)} is taken"
                    report.warn(
                        server_node.name, message, f"this one is never used; {_first(twin)}"
                    )
    _check_overlaps([pair for pair in first.values()], report)


def _check_same(listen: Listen, other: Listen, node: Node, report: Report) -> None:
    if listen.ssl != other.ssl:
        message = f"{quoted(listen.address)} is with and without ssl"
        report.error(node.token("address"), message, _first(other))
    elif listen.backlog != other.backlog and node.get("backlog") is not None:
        report.error(
            node.token("backlog"), f"another backlog for {quoted(listen.address)}", _first(other)
        )


def _check_tls(
    here: tuple[Listen, Server], other: tuple[Listen, Server], node: Node, report: Report
) -> None:
    """What a handshake settles before it knows a name is one answer per address."""
    values = [
        (x.ssl_protocols, x.ssl_verify_client, x.ssl_client_certificate)
        for x in (here[1], other[1])
    ]
    names = ("ssl_protocols", "ssl_verify_client", "ssl_client_certificate")
    for name, mine, theirs in zip(names, *values, strict=True):
        if mine != theirs:
            message = f"another {quoted(name)} for {quoted(here[0].address)}"
            hint = f"give the servers of one address the same; {_first(other[0])}"
            report.error(node.token("address"), message, hint)
            return


def _check_overlaps(found: list[tuple[Listen, Node]], report: Report) -> None:
    """A wildcard address and one of its own on the same port cannot both be bound."""
    wildcard = {(_family(x), x.port): x for x, _ in found if x.host in ("0.0.0.0", "::")}
    for listen, node in found:
        wide = wildcard.get((_family(listen), listen.port))
        if wide is None or wide is listen or listen.unix_path:
            continue
        message = f"{quoted(listen.address)} overlaps {quoted(wide.address)}"
        report.error(node.token("address"), message, f"listen on one of them; {_first(wide)}")


def _family(listen: Listen) -> int:
    try:
        return ipaddress.ip_address(listen.host).version
    except ValueError:
        return 4


def _first(listen: Listen) -> str:
    assert listen.place is not None
    return f"first in {listen.place.file}:{listen.place.line}"


def _key(listen: Listen) -> tuple[str, int, str]:
    return listen.host.lower(), listen.port, listen.unix_path
