"""Pieces that several blocks share: secrets, files, variables in the right place."""

from __future__ import annotations

from gateway.conf import variables
from gateway.conf.errors import quoted
from gateway.conf.model import Template
from gateway.conf.node import Node
from gateway.conf.secrets import read_secret
from gateway.conf.setting import Setting
from gateway.conf.sources import Token
from gateway.conf.templates import variables_of
from gateway.conf.units import BadValue
from gateway.conf.variables import ORDER, When


def secret(node: Node | None, argument: str, setting: Setting) -> str:
    """The secret a statement names; "" where there is no statement or no secret."""
    if node is None:
        return ""
    token = node.token(argument)
    try:
        value, in_place = read_secret(node.get(argument), setting.prefix, setting.environment)
    except BadValue as error:
        setting.report.error(token, f"{quoted(node.spec.name)}: {error.expected}")
        return ""
    if in_place:
        message = f"the secret of {quoted(node.spec.name)} is written in the configuration"
        setting.report.warn(token, message, "use file:PATH or env:NAME")
    return value


def check_captures(names: tuple[str, ...], at: Token, setting: Setting) -> tuple[str, ...]:
    """Groups of a regular expression must not be named like variables of the gateway."""
    for name in names:
        if variables.find(name) is not None:
            message = f"the group {quoted(name)} is named like the gateway's variable"
            setting.report.error(at, message, "rename it")
    return names


def misplaced_variables(template: Template, at: Token, moment: When, setting: Setting) -> None:
    """Warns of variables that have no value yet at `moment` (see `variables.When`)."""
    for name in variables_of(template):
        when = setting.known.when(name)
        if when is not None and ORDER.index(when) > ORDER.index(moment):
            setting.report.warn(at, f'"${name}" has no value yet here', f"it is known at: {when}")
