"""`server` blocks -> `model.Server`."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.conf import resolve_listen
from gateway.conf.errors import Report, quoted
from gateway.conf.model import Listen, Location, Server
from gateway.conf.node import Node
from gateway.conf.resolve_location import (
    Inside,
    check_shared,
    resolve_locations,
    returning_location,
)
from gateway.conf.resolve_return import check_named, error_pages
from gateway.conf.resolve_tls import server_tls
from gateway.conf.resolve_variables import resolve_sets
from gateway.conf.scope import Scope
from gateway.conf.setting import Names, Setting


def resolve_server(node: Node, outer: Scope, names: Names, setting: Setting) -> Server:
    report, scope = setting.report, outer.inner(node)
    check_shared(scope, names, setting)
    listens = resolve_listen.listens(node, report)
    server_names, captured = resolve_listen.names(node, setting)
    locations = _locations(node, scope, names, setting)
    _check_admin(node, listens, locations, report)
    buffers = scope.one("large_client_header_buffers")
    tls = server_tls(node, scope, listens, setting)
    certificate, key = tls.certificates[0] if tls.certificates else ("", "")
    return Server(
        listens=listens,
        names=server_names,
        locations=locations,
        client_header_timeout_s=scope.value("client_header_timeout"),
        client_body_timeout_s=scope.value("client_body_timeout"),
        keepalive_timeout_s=scope.value("keepalive_timeout"),
        keepalive_requests=scope.value("keepalive_requests"),
        header_bytes_max=buffers.get("number") * buffers.get("size") if buffers else 65536,
        send_timeout_s=scope.value("send_timeout"),
        ssl_certificate=certificate,
        ssl_certificate_key=key,
        ssl_certificates=tls.certificates,
        ssl_protocols=tls.protocols,
        ssl_client_certificate=tls.client_certificate,
        ssl_verify_client=tls.verify_client,
        name_captures=captured,
        error_pages=error_pages(scope, setting),
        place=node.place,
    )


def _locations(node: Node, scope: Scope, names: Names, setting: Setting) -> tuple[Location, ...]:
    report = setting.report
    own = node.one("return")
    sets = resolve_sets(node, names.maps, setting)
    inside = Inside(sets)
    found = resolve_locations(node, scope, inside, names, setting)
    if own is not None:
        if found:
            report.warn(
                own.name, '"return" in "server" answers everything; its locations are not used'
            )
        return (returning_location(own, scope, sets, names, setting),)
    if not node.has("location", "return"):
        report.warn(node.name, '"server" has no "location", so every request is answered 404')
    _check_names(node, scope, found, setting)
    return found


def _check_names(node: Node, scope: Scope, found: tuple[Location, ...], setting: Setting) -> None:
    """Targets of error_page exist, and named locations are targets."""
    own = node.all("error_page") + [page for x in _inner(node) for page in x.all("error_page")]
    around = scope.all("error_page")
    named = [location.pattern for location in found if location.modifier == "@"]
    if "location" not in node.broken:
        check_named(own, named, setting)
        check_named([page for page in around if page not in own], named, setting, outer=True)
    targets = {page.words[-1].text for page in own + around if page.words}
    for child in node.all("location"):
        name = child.words[0].text
        if name.startswith("@") and name[1:] and name not in targets:
            setting.report.warn(child.name, f"no error_page leads to {quoted(name)}")


def _inner(node: Node) -> Iterator[Node]:
    """All locations below a block, outer ones first. Depth is bounded by the parser."""
    for child in node.all("location"):
        yield child
        yield from _inner(child)


def _check_admin(
    node: Node, listens: tuple[Listen, ...], locations: tuple[Location, ...], report: Report
) -> None:
    tcp = next((listen for listen in listens if not listen.unix_path), None)
    if tcp is None:
        return
    by_place = {x.place: x for x in _flat(locations)}
    for child in _inner(node):
        admin = child.one("admin")
        if admin is None:
            continue
        match = by_place.get(child.place)
        if match is None or match.handler != "admin" or match.admin_token:
            continue
        blocks = (*_inner(node), node)
        if any("admin_token" in block.broken or block.one("admin_token") for block in blocks):
            continue
        message = f'"admin" on {quoted(tcp.address)} needs "admin_token"'
        hint = "add admin_token file:PATH; or listen on unix:/path only"
        report.error(admin.name, message, hint)


def _flat(locations: tuple[Location, ...]) -> Iterator[Location]:
    for location in locations:
        yield location
        yield from _flat(location.locations)
