"""A statement's arguments and parameters: counts, kinds, values."""

from __future__ import annotations

from gateway.conf import units
from gateway.conf.errors import Report, quoted
from gateway.conf.foreign import PARAMETERS
from gateway.conf.model import Template
from gateway.conf.node import Node
from gateway.conf.sources import Token
from gateway.conf.spec import Arg, Directive, Param
from gateway.conf.suggest import did_you_mean
from gateway.conf.templates import BadVariable
from gateway.conf.values import convert
from gateway.conf.variables import Known

Value = str | int | float | bool | Template | None


def check_args(node: Node, known: Known, report: Report) -> bool:
    """Fills `values`; False where a mistake was reported."""
    spec = node.spec
    plain = _take_params(node, known, report)
    good = _has_required(node, report)
    most = spec.max_args
    if len(plain) < spec.min_args or (most is not None and len(plain) > most):
        _wrong_count(node, plain, report)
        return False
    for index, arg in enumerate(spec.args):
        if arg.many:
            values = [_convert(arg, token, node, known, report) for token in plain[index:]]
            good = good and all(ok for ok, _ in values)
            node.values[arg.name] = tuple(value for ok, value in values if ok)
            node.tokens[arg.name] = plain[index]
        elif index < len(plain):
            ok, value = _convert(arg, plain[index], node, known, report)
            good = good and ok
            node.values[arg.name] = value
            node.tokens[arg.name] = plain[index]
    return good


def _has_required(node: Node, report: Report) -> bool:
    missing = [p for p in node.spec.params if p.required and p.name not in node.tokens]
    for param in missing:
        message = f"{quoted(node.spec.name)} needs {quoted(param.name)}"
        report.error(node.name, message, f"syntax: {node.spec.syntax}")
    return not missing


def _take_params(node: Node, known: Known, report: Report) -> list[Token]:
    """Splits parameters from plain arguments. Parameters stand behind the required arguments."""
    spec = node.spec
    plain: list[Token] = []
    params = {param.name: param for param in spec.params}
    required = sum(not (arg.optional or arg.many) for arg in spec.args)
    for index, token in enumerate(node.words):
        name, equals, _ = token.text.partition("=")
        param = params.get(name)
        if index >= required and (spec.name, name) in PARAMETERS:
            message = f"nginx's parameter {quoted(name)} of {quoted(spec.name)} is not available"
            report.error(token, message, PARAMETERS[spec.name, name])
        elif param is not None and index >= required and bool(equals) == bool(param.arg):
            _param(node, param, token, known, report)
        elif params and not _fits(spec, len(plain), token):
            _unknown_param(node, token, report)
        else:
            plain.append(token)
    return plain


def _fits(spec: Directive, position: int, token: Token) -> bool:
    """Whether a word can be the plain argument at that position."""
    if position >= len(spec.args):
        return spec.max_args is None
    arg = spec.args[position]
    return not (arg.optional and arg.kind == "choice") or token.text in arg.choices


def _param(node: Node, param: Param, token: Token, known: Known, report: Report) -> None:
    """Reads one parameter; a wrong one counts as absent, and its statement is still looked at."""
    if param.name in node.values and not param.many:
        report.error(token, f"parameter {quoted(param.name)} is duplicate")
        return
    node.tokens.setdefault(param.name, token)
    if param.arg is None:
        node.values[param.name] = True
        return
    value_text = token.text.partition("=")[2]
    try:
        value = convert(param.arg, value_text, known)
    except BadVariable as error:
        bad_variable(error, token, node, report)
        return
    except units.BadValue as error:
        expected = f"expected {error.expected}{error.guess}"
        message = f"{quoted(node.spec.name)} parameter {quoted(token.text)}: {expected}"
        report.error(token, message, error.hint)
        return
    if param.many:
        node.values[param.name] = (*node.values.get(param.name, ()), (value, token))
    else:
        node.values[param.name] = value


def _unknown_param(node: Node, token: Token, report: Report) -> None:
    name, equals, value = token.text.partition("=")
    by_name = {param.name: param for param in node.spec.params}
    param = by_name.get(name)
    if param is not None:
        form = f"{name}=..." if param.arg else name
        message = f"invalid parameter {quoted(token.text)}"
        report.error(token, message, f"it is written {form}")
        return
    names = [p.name for p in node.spec.params] + [c for a in node.spec.args for c in a.choices]
    guess = did_you_mean(name, names)
    if guess and equals:
        guess = guess.replace('"?)', f'={value}"?)')
    report.error(
        token, f"invalid parameter {quoted(token.text)} of {quoted(node.spec.name)}{guess}"
    )


def _wrong_count(node: Node, plain: list[Token], report: Report) -> None:
    spec = node.spec
    most = spec.max_args
    at = plain[most] if most is not None and len(plain) > most else node.name
    wanted = _count_words(spec.min_args, most)
    report.error(
        at, f"{quoted(spec.name)} takes {wanted}, not {len(plain)}", f"syntax: {spec.syntax}"
    )


def _count_words(least: int, most: int | None) -> str:
    if most is None:
        return f"at least {least} argument" + ("s" if least != 1 else "")
    if most == 0:
        return "no arguments"
    if least == most:
        return f"{least} argument" + ("s" if least != 1 else "")
    return f"{least} to {most} arguments"


def _convert(
    arg: Arg, token: Token, node: Node, known: Known, report: Report
) -> tuple[bool, Value]:
    try:
        return True, convert(arg, token.text, known)
    except BadVariable as error:
        bad_variable(error, token, node, report)
    except units.BadValue as error:
        shown = "" if arg.kind == "secret" else f", got {quoted(token.text)}"
        message = f"{quoted(node.spec.name)} must be {error.expected}{shown}{error.guess}"
        report.error(token, message, error.hint)
    return False, None


def bad_variable(error: BadVariable, token: Token, node: Node, report: Report) -> None:
    message = f"{error.expected} in {quoted(node.spec.name)}{error.guess}"
    report.error_within(token, error.written, message, error.hint)
