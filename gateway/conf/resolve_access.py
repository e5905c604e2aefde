"""`allow`, `deny` and `trusted_from`: who may come, and who counts as one of us."""

from __future__ import annotations

import ipaddress

from gateway.conf.errors import quoted
from gateway.conf.model import AccessRule
from gateway.conf.node import Node
from gateway.conf.scope import Scope
from gateway.conf.setting import Setting
from gateway.conf.sources import Token


def access_rules(scope: Scope, setting: Setting) -> tuple[AccessRule, ...]:
    """In file order; one of either in a block drops all from outside."""
    found: list[AccessRule] = []
    for node in scope.any_of("allow", "deny"):
        network = node.get("network")
        _check_bits(node.token("network"), network, setting)
        found.append(AccessRule(node.spec.name == "allow", network))
    return tuple(found)


def trusted_from(scope: Scope, setting: Setting) -> tuple[str, ...]:
    node = scope.one("trusted_from")
    if node is None:
        return ()
    networks: tuple[str, ...] = node.get("network")
    for token, network in zip(node.words, networks, strict=False):
        if network == "all" or network.endswith("/0"):
            message = f'"trusted_from" cannot be {quoted(token.text)}'
            setting.report.error(token, message, "name the networks of your own programs")
        else:
            _check_bits(token, network, setting)
    return networks


def _check_bits(token: Token, network: str, setting: Setting) -> None:
    """As in nginx, bits behind the prefix are cut, with a warning."""
    if "/" not in token.text:
        return
    written = ipaddress.ip_interface(token.text)
    if written.ip != ipaddress.ip_network(network).network_address:
        setting.report.warn(
            token, f"{quoted(token.text)} has bits behind its prefix", f"write {network}"
        )


def needs_trusted(node: Node, networks: tuple[str, ...], scope: Scope, setting: Setting) -> None:
    """A policy header for trusted callers only, where nobody is trusted, could never be used."""
    if not networks and not scope.has("trusted_from"):
        message = f"{quoted(node.words[0].text)} is for trusted callers, and there are none"
        setting.report.error(node.words[0], message, 'add "trusted_from ADDRESS;"')
