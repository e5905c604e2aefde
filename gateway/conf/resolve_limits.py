"""`limit_conn` and `limit_req`: zones, limits, and what is answered above them."""

from __future__ import annotations

import re

from gateway.conf import units
from gateway.conf.errors import quoted
from gateway.conf.model import LimitConn, LimitReq, Limits, LimitZone
from gateway.conf.node import Node
from gateway.conf.resolve_parts import misplaced_variables
from gateway.conf.scope import Scope
from gateway.conf.setting import Names, Setting
from gateway.conf.suggest import did_you_mean

# Bytes of a zone that one key is counted as: nginx's own figures on 64-bit machines.
ENTRY_BYTES = {"limit_conn_zone": 64, "limit_req_zone": 128}
ZONE_BYTES_MIN = 32 << 10
ZONE_BYTES_MAX = 1 << 30
RATE_MAX = 1_000_000.0  # requests per second


def resolve_zones(http: Node, directive: str, setting: Setting) -> dict[str, LimitZone]:
    """The zones of one kind by name. Names are shared by both kinds, as in nginx."""
    found: dict[str, LimitZone] = {}
    kinds = ("limit_conn_zone", "limit_req_zone")
    first: dict[str, Node] = {}
    for node in http.children:
        if node.spec.name not in kinds or "zone" not in node.values:
            continue
        name = node.get("zone").partition(":")[0]
        twin = first.setdefault(name, node)
        if node.spec.name != directive:
            continue
        if twin is not node:
            hint = f"first in {twin.place.file}:{twin.place.line}"
            setting.report.error(node.token("zone"), f"duplicate zone {quoted(name)}", hint)
            continue
        zone = _zone(node, directive, setting)
        if zone is not None:
            found[zone.name] = zone
    return found


def _zone(node: Node, directive: str, setting: Setting) -> LimitZone | None:
    token, report = node.token("zone"), setting.report
    name, colon, size = node.get("zone").partition(":")
    try:
        units.name(name)
        octets = units.octets(size) if colon else -1
    except units.BadValue:
        octets = -1
    if not ZONE_BYTES_MIN <= octets <= ZONE_BYTES_MAX:
        message = f"{quoted(directive)} parameter {quoted(token.text)}: expected zone=NAME:SIZE"
        report.error(token, message, "SIZE is from 32k to 1g, such as 10m")
        return None
    key = node.get("key")
    if key.constant is not None:
        report.warn(node.token("key"), f"the key of zone {quoted(name)} is the same for all")
    misplaced_variables(key, node.token("key"), "request", setting)
    rate = _rate(node, setting) if directive == "limit_req_zone" else 0.0
    return LimitZone(name, key, octets // ENTRY_BYTES[directive], rate, node.place)


def _rate(node: Node, setting: Setting) -> float:
    token, text = node.token("rate"), node.get("rate", "")
    match = re.fullmatch(r"([0-9]{1,9})r/([sm])", text)
    rate = 0.0
    if match is not None:
        rate = int(match[1]) / (1 if match[2] == "s" else 60)
    if not 0 < rate <= RATE_MAX:
        expected = "expected a rate above 0 such as 10r/s or 30r/m"
        zero = match is not None and not rate
        hint = "to refuse everything write deny all; or return 429;" if zero else ""
        message = f'"limit_req_zone" parameter {quoted(token.text)}: {expected}'
        setting.report.error(token, message, hint)
    return rate


def resolve_limits(scope: Scope, names: Names, setting: Setting) -> Limits:
    """The limits that hold in a block. Those of one kind in a block drop all from outside."""
    value = scope.value
    return Limits(
        conns=_conns(scope, names, setting),
        conn_status=value("limit_conn_status"),
        conn_log_level=value("limit_conn_log_level"),
        reqs=_reqs(scope, names, setting),
        req_status=value("limit_req_status"),
        req_log_level=value("limit_req_log_level"),
    )


def _conns(scope: Scope, names: Names, setting: Setting) -> tuple[LimitConn, ...]:
    found: dict[str, LimitConn] = {}
    for node in scope.all("limit_conn"):
        zone = node.get("zone")
        if not _is_zone(zone, node, names.conn_zones, names.conn_zones_broken, setting):
            continue
        if zone in found:
            setting.report.error(node.token("zone"), f"{quoted(zone)} is limited twice in a block")
        found[zone] = LimitConn(zone, node.get("number"))
    return tuple(found.values())


def _reqs(scope: Scope, names: Names, setting: Setting) -> tuple[LimitReq, ...]:
    found: dict[str, LimitReq] = {}
    for node in scope.all("limit_req"):
        zone = node.get("zone")
        if zone is None or not _is_zone(
            zone, node, names.req_zones, names.req_zones_broken, setting
        ):
            continue
        if zone in found:
            setting.report.error(node.token("zone"), f"{quoted(zone)} is limited twice in a block")
        if node.get("nodelay") and node.get("delay") is not None:
            setting.report.error(node.token("delay"), '"delay" does not go with "nodelay"')
        delay = None if node.get("nodelay") else node.get("delay", 0)
        found[zone] = LimitReq(zone, node.get("burst", 0), delay)
    return tuple(found.values())


def _is_zone(
    zone: str, node: Node, zones: dict[str, LimitZone], broken: bool, setting: Setting
) -> bool:
    if zone in zones:
        return True
    if not broken:
        kind = f"{node.spec.name}_zone"
        guess = did_you_mean(zone, zones)
        message = f"unknown zone {quoted(zone)} in {quoted(node.spec.name)}{guess}"
        setting.report.error(node.token("zone"), message, f'declare it with "{kind}" in "http"')
    return False
