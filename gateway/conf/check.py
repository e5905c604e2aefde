"""The tree checked against the table: names, contexts, counts, types, duplicates -> typed nodes.

A node exists only for a statement that is right by the table; a wrong one is reported and its name
kept in its parent's `broken`, so that what depends on it is not reported a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.conf import units
from gateway.conf.directives import TABLE
from gateway.conf.errors import Report, quoted
from gateway.conf.foreign import PARAMETERS
from gateway.conf.model import Place, Template
from gateway.conf.parser import Statement
from gateway.conf.sources import Token
from gateway.conf.spec import Arg, Directive, Param
from gateway.conf.suggest import did_you_mean, nearest
from gateway.conf.templates import BadVariable
from gateway.conf.values import convert

Value = str | int | float | bool | Template | None


@dataclass(slots=True, eq=False)
class Node:
    """A checked statement. `values` by argument or parameter name; `many` ones are tuples."""

    spec: Directive
    name: Token
    words: tuple[Token, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    _by_name: dict[str, list[Node]] = field(default_factory=dict)

    def add(self, child: Node) -> None:
        self.children.append(child)
        self._by_name.setdefault(child.spec.name, []).append(child)

    @property
    def place(self) -> Place:
        return self.name.place

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an argument or parameter, or `default` where it was not written."""
        return self.values.get(name, default)

    def token(self, name: str) -> Token:
        """Where an argument was written; the directive's name where it was not."""
        return self.tokens.get(name, self.name)

    def all(self, name: str) -> list[Node]:
        return self._by_name.get(name, [])

    def one(self, name: str) -> Node | None:
        return next(iter(self.all(name)), None)

    def has(self, *names: str) -> bool:
        """Whether a statement of one of these names was written, even a wrong or misspelt one."""
        return any(map(self.all, names)) or any(nearest(wrong, names) for wrong in self.broken)


MAIN = Directive("main", (), block=True)


def check(statements: list[Statement], main: Token, report: Report) -> Node:
    """The checked tree of a whole file. Depth is bounded by the parser."""
    root = Node(MAIN, main)
    _check_block(statements, root, report)
    return root


def _check_block(statements: list[Statement], parent: Node, report: Report) -> None:
    first: dict[str, Token] = {}
    for statement in statements:
        name = statement.name.text
        spec = _find(statement, parent, report)
        if spec is None:
            parent.broken.add(name)
            _check_stray(statement, parent, report)
            continue
        if not spec.repeat and name in first:
            line = first[name].place
            report.error(
                statement.name, f"{quoted(name)} is duplicate", f"first in {line.file}:{line.line}"
            )
            continue
        first.setdefault(name, statement.name)
        node = _check_one(statement, spec, report)
        if node is None:
            parent.broken.add(name)
        else:
            parent.add(node)


def _find(statement: Statement, parent: Node, report: Report) -> Directive | None:
    token, context = statement.name, parent.spec.name
    name = token.text
    spec = TABLE.find(name, context)
    if spec is not None:
        return spec
    if name in TABLE.foreign:
        report.error(token, f"nginx's {quoted(name)} is not available", TABLE.foreign[name].hint)
        return None
    elsewhere = TABLE.named(name)
    if elsewhere:
        contexts = " or ".join(quoted(c) for d in elsewhere for c in d.contexts)
        report.error(
            token, f'{quoted(name)} is not allowed in "{context}"', f"it belongs in {contexts}"
        )
        return None
    guess = did_you_mean(name, TABLE.names_in(context)) or did_you_mean(name, TABLE.names())
    report.error(
        token, f'unknown directive {quoted(name)} in "{context}"{guess}', _strange_blank(name)
    )
    return None


def _check_stray(statement: Statement, parent: Node, report: Report) -> None:
    """Looks into a block that is misspelt or misplaced, by what it was probably meant to be."""
    if statement.block is None:
        return
    name = statement.name.text
    meant = nearest(name, TABLE.names_in(parent.spec.name)) or name
    specs = [spec for spec in TABLE.named(meant) if spec.block]
    if specs:
        _check_block(statement.block, Node(specs[0], statement.name), report)


def _strange_blank(text: str) -> str:
    """Text copied from web pages has blanks that only look like blanks."""
    for char in text:
        if char.isspace() or char in "\u200b\u2060\ufeff":
            return f"it holds the character U+{ord(char):04X}; write an ordinary blank"
    return ""


def _check_one(statement: Statement, spec: Directive, report: Report) -> Node | None:
    if spec.block and statement.block is None:
        report.error(statement.name, f'{quoted(spec.name)} needs a block: no opening "{{"')
        return None
    node = Node(spec, statement.name, statement.args)
    good = _check_args(node, report)
    if statement.block is not None:
        if not spec.block:
            report.error(statement.name, f"{quoted(spec.name)} takes no block", 'end it with ";"')
            return None
        _check_block(statement.block, node, report)
    return node if good else None


def _check_args(node: Node, report: Report) -> bool:
    """Fills `values`; False where a mistake was reported."""
    spec = node.spec
    plain = _take_params(node, report)
    good = True
    most = spec.max_args
    if len(plain) < spec.min_args or (most is not None and len(plain) > most):
        _wrong_count(node, plain, report)
        return False
    for index, arg in enumerate(spec.args):
        if arg.many:
            values = [_convert(arg, token, node, report) for token in plain[index:]]
            good = good and all(ok for ok, _ in values)
            node.values[arg.name] = tuple(value for ok, value in values if ok)
            node.tokens[arg.name] = plain[index]
        elif index < len(plain):
            ok, value = _convert(arg, plain[index], node, report)
            good = good and ok
            node.values[arg.name] = value
            node.tokens[arg.name] = plain[index]
    return good


def _take_params(node: Node, report: Report) -> list[Token]:
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
            _param(node, param, token, report)
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


def _param(node: Node, param: Param, token: Token, report: Report) -> None:
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
        value = convert(param.arg, value_text)
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


def _convert(arg: Arg, token: Token, node: Node, report: Report) -> tuple[bool, Value]:
    try:
        return True, convert(arg, token.text)
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
