"""`server` blocks -> `model.Server`."""

from __future__ import annotations

import os
import ssl

from gateway.conf import resolve_listen
from gateway.conf.check import Node
from gateway.conf.errors import Report, quoted
from gateway.conf.files import Unreadable, read_bytes
from gateway.conf.model import Listen, Location, Server
from gateway.conf.resolve_location import check_shared, resolve_location, resolve_return
from gateway.conf.scope import Scope
from gateway.conf.setting import Names, Setting

PEM_BYTES_MAX = 1 << 20


def resolve_server(node: Node, outer: Scope, names: Names, setting: Setting) -> Server:
    report, scope = setting.report, outer.inner(node)
    check_shared(scope, names, setting)
    listens = resolve_listen.listens(node, report)
    locations = _locations(node, scope, names, setting)
    _check_admin(node, listens, locations, report)
    buffers = scope.one("large_client_header_buffers")
    certificate, key = _certificate(node, scope, listens, setting)
    return Server(
        listens=listens,
        names=resolve_listen.names(node, report),
        locations=locations,
        client_header_timeout_s=scope.value("client_header_timeout"),
        client_body_timeout_s=scope.value("client_body_timeout"),
        keepalive_timeout_s=scope.value("keepalive_timeout"),
        keepalive_requests=scope.value("keepalive_requests"),
        header_bytes_max=buffers.get("number") * buffers.get("size") if buffers else 65536,
        ssl_certificate=certificate,
        ssl_certificate_key=key,
        place=node.place,
    )


def _locations(node: Node, scope: Scope, names: Names, setting: Setting) -> tuple[Location, ...]:
    report = setting.report
    own = node.one("return")
    found: list[Location] = []
    seen: dict[tuple[str, str], Location] = {}
    for child in node.all("location"):
        location = resolve_location(child, scope, names, setting)
        if location is None:
            continue
        # "^~ /x" and "/x" are one prefix with and without a mark, as in nginx.
        key = ("" if location.modifier == "^~" else location.modifier, location.pattern)
        first = seen.setdefault(key, location)
        if first is not location:
            assert first.place is not None
            hint = f"first in {first.place.file}:{first.place.line}"
            report.error(child.name, f"duplicate location {quoted(location.pattern)}", hint)
        found.append(location)
    if own is not None:
        if found:
            report.warn(
                own.name, '"return" in "server" answers everything; its locations are not used'
            )
        return (resolve_return(node, own, scope, names, setting),)
    if not node.has("location", "return"):
        report.warn(node.name, '"server" has no "location", so every request is answered 404')
    return tuple(found)


def _check_admin(
    node: Node, listens: tuple[Listen, ...], locations: tuple[Location, ...], report: Report
) -> None:
    tcp = next((listen for listen in listens if not listen.unix_path), None)
    if tcp is None:
        return
    for child in node.all("location"):
        admin = child.one("admin")
        if admin is None:
            continue
        match = next((x for x in locations if x.place == child.place), None)
        if match is None or match.handler != "admin" or match.admin_token:
            continue
        blocks = (child, node)
        if any("admin_token" in block.broken or block.one("admin_token") for block in blocks):
            continue
        message = f'"admin" on {quoted(tcp.address)} needs "admin_token"'
        hint = "add admin_token file:PATH; or listen on unix:/path only"
        report.error(admin.name, message, hint)


def _certificate(
    node: Node, scope: Scope, listens: tuple[Listen, ...], setting: Setting
) -> tuple[str, str]:
    """Paths of certificate and key, loaded once to see that they fit; ("", "") without TLS."""
    report = setting.report
    tls = next((child for child in node.all("listen") if child.get("ssl")), None)
    lines = scope.one("ssl_certificate"), scope.one("ssl_certificate_key")
    if tls is None or not any(listen.ssl for listen in listens):
        return "", ""
    for line, name in zip(lines, ("ssl_certificate", "ssl_certificate_key"), strict=True):
        if line is None and not scope.has(name):
            report.error(tls.token("ssl"), f'"listen ... ssl" needs "{name}"')
    certificate, key = lines
    if certificate is None or key is None:
        return "", ""
    paths = [os.path.join(setting.directory, line.get("file")) for line in (certificate, key)]
    readable = True
    for line, path in zip((certificate, key), paths, strict=True):
        try:
            read_bytes(path, PEM_BYTES_MAX)
        except Unreadable as error:
            report.error(line.token("file"), f"cannot read {quoted(path)}: {error}")
            readable = False
    if readable:
        _load(paths[0], paths[1], certificate, report)
    return paths[0], paths[1]


def _load(certificate: str, key: str, at: Node, report: Report) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty passphrase: without one OpenSSL would ask at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        mismatch = getattr(error, "reason", None) == "KEY_VALUES_MISMATCH"
        message = f"cannot use {quoted(certificate)} with {quoted(key)}"
        why = "the key belongs to another certificate" if mismatch else "both must be PEM"
        report.error(at.token("file"), f"{message}: {why}", "" if mismatch else "no passphrase")
