"""`policy_header` and `policy_header_alias`."""

from __future__ import annotations

from gateway.conf.errors import quoted
from gateway.conf.model import PolicyHeader
from gateway.conf.node import Node
from gateway.conf.policies import BY_NAME, PREFIX, Policy, full_name, number, shown
from gateway.conf.resolve_access import needs_trusted
from gateway.conf.scope import Scope
from gateway.conf.setting import Setting
from gateway.conf.suggest import did_you_mean
from gateway.conf.units import BadValue

_ATTRIBUTES = ("allow", "min", "max")


def policy_headers(
    scope: Scope, networks: tuple[str, ...], setting: Setting
) -> tuple[PolicyHeader, ...]:
    """The headers a location takes. One line in a block drops all from outside."""
    found: dict[str, PolicyHeader] = {}
    for node in scope.all("policy_header"):
        policy = _policy(node, "header", setting)
        if policy is None:
            continue
        name = full_name(policy)
        if name in found:
            setting.report.error(node.token("header"), f"{quoted(name)} is allowed twice")
        if policy.trusted:
            needs_trusted(node, networks, scope, setting)
        found[name] = _header(node, policy, setting)
    return tuple(found.values())


def _policy(node: Node, argument: str, setting: Setting) -> Policy | None:
    written = node.get(argument)
    policy = BY_NAME.get(written.lower())
    if policy is None:
        names = [full_name(known) for known in BY_NAME.values()]
        guess = did_you_mean(written, names)
        message = f"unknown policy header {quoted(written)}{guess}"
        setting.report.error(node.token(argument), message, f"they are {', '.join(names)}")
    return policy


def _header(node: Node, policy: Policy, setting: Setting) -> PolicyHeader:
    for attribute in _ATTRIBUTES:
        if attribute in node.values and attribute not in policy.attributes:
            rest = " and ".join(policy.attributes) or "no attribute"
            message = f"{quoted(full_name(policy))} has no {quoted(attribute)}"
            setting.report.error(node.token(attribute), message, f"it has {rest}")
    low = _bound(node, "min", policy, setting)
    high = _bound(node, "max", policy, setting)
    if low > high:
        message = f"min {shown(policy.kind, low)} is above max {shown(policy.kind, high)}"
        setting.report.error(node.token("min"), message)
    return PolicyHeader(
        name=full_name(policy),
        kind=policy.kind,
        allow=_allowed(node, policy, setting),
        low=low,
        high=high,
        trusted=policy.trusted,
    )


def _bound(node: Node, attribute: str, policy: Policy, setting: Setting) -> float:
    limit = policy.low if attribute == "min" else policy.high
    text = node.get(attribute)
    if text is None or attribute not in policy.attributes:
        return limit
    token = node.token(attribute)
    try:
        value = number(policy.kind, text)
    except BadValue as error:
        message = f"{quoted(full_name(policy))}: {attribute} must be {error.expected}"
        setting.report.error(token, message, error.hint)
        return limit
    if not policy.low <= value <= policy.high:
        span = f"{shown(policy.kind, policy.low)} to {shown(policy.kind, policy.high)}"
        message = f"{quoted(full_name(policy))}: {attribute} must be from {span}"
        setting.report.error(token, message)
        return limit
    return value


def _allowed(node: Node, policy: Policy, setting: Setting) -> tuple[str, ...]:
    text = node.get("allow")
    if text is None or "allow" not in policy.attributes:
        return policy.words
    words = tuple(text.split(","))
    for word in words:
        if not word or (policy.words and word not in policy.words):
            known = ", ".join(policy.words) or "words with commas between"
            guess = did_you_mean(word, policy.words)
            message = f"{quoted(full_name(policy))} cannot allow {quoted(word)}{guess}"
            setting.report.error(node.token("allow"), message, f"it takes {known}")
    return words


def policy_aliases(
    scope: Scope, headers: tuple[PolicyHeader, ...], setting: Setting
) -> tuple[tuple[str, str], ...]:
    """(client's header in lower case, policy header), each for a header the location takes."""
    found: dict[str, str] = {}
    allowed = {header.name for header in headers}
    for node in scope.all("policy_header_alias"):
        policy = _policy(node, "policy", setting)
        alias = node.get("header").lower()
        if alias.startswith(PREFIX.lower()):
            message = f"{quoted(node.get('header'))} is a policy header itself, not an alias"
            setting.report.error(node.token("header"), message)
        elif alias in found:
            setting.report.error(node.token("header"), f"alias {quoted(alias)} is duplicate")
        elif policy is not None:
            name = full_name(policy)
            if name not in allowed and "policy_header" not in _broken(scope):
                hint = f'add "policy_header {name};" beside it'
                message = f"{quoted(name)} is not allowed here, so its alias does nothing"
                setting.report.error(node.token("policy"), message, hint)
            found[alias] = name
    return tuple(found.items())


def _broken(scope: Scope) -> set[str]:
    return {name for block in scope.blocks for name in block.broken}
