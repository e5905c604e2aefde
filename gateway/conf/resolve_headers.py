"""`proxy_set_header`, `add_header`, `proxy_hide_header`."""

from __future__ import annotations

from gateway.conf.errors import Report, quoted
from gateway.conf.model import AddHeader, Template, Var
from gateway.conf.node import Node
from gateway.conf.resolve_parts import misplaced_variables
from gateway.conf.scope import Scope
from gateway.conf.setting import Setting
from gateway.conf.units import BadValue, visible
from gateway.conf.variables import When

HEADERS_MAX = 100
# RFC 9110 7.6.1: connection headers belong to one hop; framing follows from the body.
_MANAGED = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "expect",
    ]
)
_REPLY_MANAGED = _MANAGED | {"date"}


def set_headers(scope: Scope, setting: Setting) -> tuple[tuple[str, Template], ...]:
    """The headers for engines. An empty value removes; what the gateway does anyway is left out."""
    report = setting.report
    found: list[tuple[str, Template]] = []
    nodes = scope.all("proxy_set_header")
    _check_count(nodes, report)
    seen: dict[str, Node] = {}
    for node in nodes:
        name, value = node.get("name"), node.get("value")
        first = seen.setdefault(name.lower(), node)
        if first is not node:
            hint = f"first in {first.place.file}:{first.place.line}"
            report.error(node.token("name"), f"header {quoted(name)} is set twice", hint)
        if _value_is_good(node, "pick", setting) and not _is_managed(node, report):
            found.append((name, value))
    return tuple(found)


def _is_managed(node: Node, report: Report) -> bool:
    """Whether the gateway sets this header itself; an attempt to change it is an error."""
    name, value = node.get("name"), node.get("value")
    lower = name.lower()
    if lower == "x-request-id":
        if value.parts != (Var("request_id"),):
            hint = "engines must get a fresh id; the client's is in $client_request_id"
            report.error(node.token("value"), f"{quoted(name)} can only be $request_id", hint)
        return True
    if lower not in _MANAGED:
        return False
    # nginx needs `Connection ""` for keep-alive: every file has it, and it is true here.
    if value.constant != "":
        report.error(node.token("name"), f"header {quoted(name)} is the gateway's own", "remove it")
    return True


def add_headers(scope: Scope, setting: Setting) -> tuple[AddHeader, ...]:
    report = setting.report
    found: list[AddHeader] = []
    nodes = scope.all("add_header")
    _check_count(nodes, report)
    for node in nodes:
        name = node.get("name")
        if name.lower() in _REPLY_MANAGED:
            report.error(
                node.token("name"), f"header {quoted(name)} is the gateway's own", "remove it"
            )
        elif _value_is_good(node, "reply", setting):
            found.append(AddHeader(name, node.get("value"), node.get("always", False)))
    return tuple(found)


def hidden_headers(scope: Scope) -> frozenset[str]:
    passed = {node.get("name").lower() for node in scope.all("proxy_pass_header")}
    hidden = {node.get("name").lower() for node in scope.all("proxy_hide_header")}
    return frozenset(hidden - passed)


def _value_is_good(node: Node, moment: When, setting: Setting) -> bool:
    """Header values are one line: a line end in one would be a header of the attacker's choice."""
    template, token = node.get("value"), node.token("value")
    try:
        for part in template.parts:
            if isinstance(part, str):
                visible(part)
    except BadValue as error:
        setting.report.error(token, f"{quoted(node.spec.name)} must be {error.expected}")
        return False
    misplaced_variables(template, token, moment, setting)
    return True


def _check_count(nodes: list[Node], report: Report) -> None:
    if len(nodes) > HEADERS_MAX:
        node = nodes[HEADERS_MAX]
        report.error(node.name, f"more than {HEADERS_MAX} {node.spec.name} lines in one block")
