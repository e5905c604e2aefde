"""`location` blocks -> `model.Location`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.conf.errors import quoted
from gateway.conf.location_pattern import check_nesting, location_pattern
from gateway.conf.model import Assign, Location, Proxy, ProxyTls, Return
from gateway.conf.node import Node
from gateway.conf.patterns import captures
from gateway.conf.resolve_access import access_rules, trusted_from
from gateway.conf.resolve_headers import add_headers, hidden_headers, set_headers
from gateway.conf.resolve_limits import resolve_limits
from gateway.conf.resolve_log import access_logs, recording
from gateway.conf.resolve_parts import secret
from gateway.conf.resolve_policy import policy_aliases, policy_headers
from gateway.conf.resolve_proxy import next_upstream, resolve_proxy
from gateway.conf.resolve_return import error_pages, resolve_return
from gateway.conf.resolve_slo import service_levels
from gateway.conf.resolve_tls import proxy_tls
from gateway.conf.resolve_variables import resolve_sets
from gateway.conf.scope import Scope
from gateway.conf.setting import Names, Setting

HANDLERS = ("proxy_pass", "return", "admin", "metrics")


@dataclass(frozen=True, slots=True)
class Inside:
    """What holds around locations: the server's `set` lines, and the location they are in."""

    sets: tuple[Assign, ...]
    modifier: str = ""
    pattern: str = ""


def resolve_locations(
    block: Node, outer: Scope, inside: Inside, names: Names, setting: Setting
) -> tuple[Location, ...]:
    """The locations directly in a block, each with those in it."""
    found: list[Location] = []
    seen: dict[tuple[str, str], Location] = {}
    for child in block.all("location"):
        location = _location(child, outer, inside, names, setting)
        if location is None:
            continue
        # "^~ /x" and "/x" are one prefix with and without a mark, as in nginx.
        key = ("" if location.modifier == "^~" else location.modifier, location.pattern)
        first = seen.setdefault(key, location)
        if first is not location:
            assert first.place is not None
            hint = f"first in {first.place.file}:{first.place.line}"
            message = f"duplicate location {quoted(location.pattern)}"
            if location.modifier in ("~", "~*"):
                setting.report.warn(child.name, message, f"this one is never used; {hint}")
            else:
                setting.report.error(child.name, message, hint)
        found.append(location)
    return tuple(found)


def _location(
    node: Node, outer: Scope, inside: Inside, names: Names, setting: Setting
) -> Location | None:
    """None where the location's own pattern is wrong; what is inside is looked at all the same."""
    scope = outer.inner(node)
    pattern = location_pattern(node, setting)
    if pattern is not None:
        check_nesting(node, pattern, (inside.modifier, inside.pattern), setting.report)
    modifier, path = pattern or ("", "")
    handler = _handler(node, modifier, names, setting)
    own = resolve_sets(node, names.maps, setting)
    nested = resolve_locations(node, scope, Inside(inside.sets, modifier, path), names, setting)
    location = _settings(scope, names, setting, handler, pattern or ("", "/"))
    found = captures(path) if modifier in ("~", "~*") and pattern else ()
    if pattern is None:
        return None
    return replace(location, locations=nested, captures=found, sets=inside.sets + own)


def returning_location(
    node: Node, outer: Scope, sets: tuple[Assign, ...], names: Names, setting: Setting
) -> Location:
    """The one location a server with its own `return` has."""
    location = _settings(outer, names, setting, resolve_return(node, setting), ("", "/"))
    return replace(location, sets=sets)


def _settings(
    scope: Scope,
    names: Names,
    setting: Setting,
    handler: Proxy | Return | str,
    pattern: tuple[str, str],
) -> Location:
    value, report = scope.value, setting.report
    https = isinstance(handler, Proxy) and handler.scheme == "https"
    trusted = trusted_from(scope, setting)
    policies = policy_headers(scope, trusted, setting)
    return Location(
        modifier=pattern[0],
        pattern=pattern[1],
        handler=handler,
        connect_timeout_s=value("proxy_connect_timeout"),
        send_timeout_s=value("proxy_send_timeout"),
        first_byte_timeout_s=value("proxy_first_byte_timeout"),
        read_timeout_s=value("proxy_read_timeout"),
        total_timeout_s=value("proxy_total_timeout"),
        client_max_body_size=value("client_max_body_size"),
        set_headers=set_headers(scope, setting),
        add_headers=add_headers(scope, setting),
        hide_headers=hidden_headers(scope),
        pass_headers=frozenset(n.get("name").lower() for n in scope.all("proxy_pass_header")),
        next_upstream=next_upstream(scope, report),
        next_upstream_tries=value("proxy_next_upstream_tries"),
        next_upstream_timeout_s=value("proxy_next_upstream_timeout"),
        engine_admin=value("engine_admin"),
        trust_client=value("trust_client"),
        express=value("express"),
        expose_receipt=value("expose_receipt"),
        admin_token=secret(scope.one("admin_token"), "token", setting),
        access_logs=access_logs(scope, names, setting),
        recording=recording(scope, names, setting),
        error_pages=error_pages(scope, setting),
        slo=service_levels(scope, setting),
        access=access_rules(scope, setting),
        limits=resolve_limits(scope, names, setting),
        proxy_tls=proxy_tls(scope, setting) if https else ProxyTls(),
        policy_headers=policies,
        policy_aliases=policy_aliases(scope, policies, setting),
        trusted_from=trusted,
        place=scope.blocks[0].place,
    )


def check_shared(scope: Scope, names: Names, setting: Setting) -> None:
    """Looks at what a block around locations sets, which none of them may inherit."""
    own = Scope(scope.blocks[:1])
    set_headers(own, setting)
    add_headers(own, setting)
    next_upstream(own, setting.report)
    error_pages(own, setting)
    access_rules(own, setting)
    resolve_limits(own, names, setting)
    access_logs(own, names, setting)
    recording(own, names, setting)
    service_levels(own, setting)
    secret(own.one("admin_token"), "token", setting)


def _handler(node: Node, modifier: str, names: Names, setting: Setting) -> Proxy | Return | str:
    report = setting.report
    written = [child for child in node.children if child.spec.name in HANDLERS]
    for extra in written[1:]:
        first = written[0]
        message = f"{quoted(extra.spec.name)} does not go with {quoted(first.spec.name)}"
        report.error(
            extra.name, message, f"{quoted(first.spec.name)} is in line {first.place.line}"
        )
    if not written:
        if not node.broken and not node.has("location"):
            message = '"location" has none of proxy_pass, return, admin, metrics, so it answers 404'
            report.warn(node.name, message)
        return "none"
    handler = written[0]
    if handler.spec.name == "proxy_pass":
        return resolve_proxy(handler, modifier, names, setting) or "none"
    if handler.spec.name == "return":
        return resolve_return(handler, setting)
    return handler.spec.name
