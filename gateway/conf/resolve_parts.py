"""Pieces that several blocks share: secrets, files, variables in the right place."""

from __future__ import annotations

from gateway.conf import variables
from gateway.conf.check import Node
from gateway.conf.errors import Report, quoted
from gateway.conf.model import Template
from gateway.conf.secrets import read_secret
from gateway.conf.setting import Setting
from gateway.conf.sources import Token
from gateway.conf.templates import variables_of
from gateway.conf.units import BadValue

_ORDER = ("request", "route", "pick", "reply", "end")


def secret(node: Node | None, argument: str, setting: Setting) -> str:
    """The secret a statement names; "" where there is no statement or no secret."""
    if node is None:
        return ""
    token = node.token(argument)
    try:
        value, in_place = read_secret(token.text, setting.prefix, setting.environment)
    except BadValue as error:
        setting.report.error(token, f"{quoted(node.spec.name)}: {error.expected}")
        return ""
    if in_place:
        message = f"the secret of {quoted(node.spec.name)} is written in the configuration"
        setting.report.warn(token, message, "use file:PATH or env:NAME")
    return value


def misplaced_variables(template: Template, at: Token, moment: str, report: Report) -> None:
    """Warns of variables that have no value yet at `moment` (see `variables.When`)."""
    for name in variables_of(template):
        variable = variables.find(name)
        if variable is not None and _ORDER.index(variable.when) > _ORDER.index(moment):
            report.warn(at, f'"${name}" has no value yet here', f"it is known at: {variable.when}")
