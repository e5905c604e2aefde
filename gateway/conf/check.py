"""The tree checked against the table: names, contexts, counts, types, duplicates -> typed nodes.

A node exists only for a statement that is right by the table; a wrong one is reported and its name
kept in its parent's `broken`, so that what depends on it is not reported a second time.
"""

from __future__ import annotations

from gateway.conf.check_args import check_args
from gateway.conf.directives import TABLE
from gateway.conf.errors import Report, quoted
from gateway.conf.node import Node
from gateway.conf.parser import Statement
from gateway.conf.sources import Token
from gateway.conf.spec import Directive
from gateway.conf.suggest import did_you_mean, nearest
from gateway.conf.variables import Known

MAIN = Directive("main", (), block=True)


def check(statements: list[Statement], main: Token, known: Known, report: Report) -> Node:
    """The checked tree of a whole file. Depth is bounded by the parser."""
    root = Node(MAIN, main)
    _check_block(statements, root, known, report)
    return root


def _check_block(statements: list[Statement], parent: Node, known: Known, report: Report) -> None:
    first: dict[str, Token] = {}
    for statement in statements:
        name = statement.name.text
        spec = _find(statement, parent, report)
        if spec is None:
            parent.broken.add(name)
            _check_stray(statement, parent, known, report)
            continue
        if not spec.repeat and name in first:
            line = first[name].place
            report.error(
                statement.name, f"{quoted(name)} is duplicate", f"first in {line.file}:{line.line}"
            )
            continue
        first.setdefault(name, statement.name)
        node = _check_one(statement, spec, known, report)
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


def _check_stray(statement: Statement, parent: Node, known: Known, report: Report) -> None:
    """Looks into a block that is misspelt or misplaced, by what it was probably meant to be."""
    if statement.block is None:
        return
    name = statement.name.text
    meant = nearest(name, TABLE.names_in(parent.spec.name)) or name
    specs = [spec for spec in TABLE.named(meant) if spec.block]
    if specs and not specs[0].free:
        _check_block(statement.block, Node(specs[0], statement.name), known, report)


def _strange_blank(text: str) -> str:
    """Text copied from web pages has blanks that only look like blanks."""
    for char in text:
        if char.isspace() or char in "\u200b\u2060\ufeff":
            return f"it holds the character U+{ord(char):04X}; write an ordinary blank"
    return ""


def _check_one(statement: Statement, spec: Directive, known: Known, report: Report) -> Node | None:
    if spec.block and statement.block is None:
        report.error(statement.name, f'{quoted(spec.name)} needs a block: no opening "{{"')
        return None
    node = Node(spec, statement.name, statement.args)
    good = check_args(node, known, report)
    if statement.block is not None:
        if not spec.block:
            report.error(statement.name, f"{quoted(spec.name)} takes no block", 'end it with ";"')
            return None
        if spec.free:
            node.lines = statement.block
        else:
            _check_block(statement.block, node, known, report)
    return node if good else None
