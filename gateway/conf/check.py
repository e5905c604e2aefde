"""The tree checked against the table: names, contexts, counts, types, duplicates -> typed nodes.

A node exists only for a statement that is right by the table; a wrong one is reported and its name
kept in its parent's `broken`, so that what depends on it is not reported a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.conf.check_args import check_args
from gateway.conf.errors import Report, quoted
from gateway.conf.node import Node
from gateway.conf.parser import Statement
from gateway.conf.sources import Token
from gateway.conf.spec import Directive, Table
from gateway.conf.suggest import did_you_mean, nearest
from gateway.conf.variables import Known

MAIN = Directive("main", (), block=True)


@dataclass(frozen=True, slots=True)
class Check:
    """One run over a tree: by which table, with which variables. Depth is bounded by the parser."""

    table: Table
    known: Known
    report: Report

    def tree(self, statements: list[Statement], main: Token) -> Node:
        """The checked tree of a whole file."""
        root = Node(MAIN, main)
        self._block(statements, root)
        return root

    def _block(self, statements: list[Statement], parent: Node) -> None:
        first: dict[str, Token] = {}
        for statement in statements:
            name = statement.name.text
            spec = self._find(statement, parent)
            if spec is None:
                parent.broken.add(name)
                self._stray(statement, parent)
                continue
            if not spec.repeat and name in first:
                line = first[name].place
                hint = f"first in {line.file}:{line.line}"
                self.report.error(statement.name, f"{quoted(name)} is duplicate", hint)
                continue
            first.setdefault(name, statement.name)
            node = self._one(statement, spec)
            if node is None:
                parent.broken.add(name)
            else:
                parent.add(node)

    def _find(self, statement: Statement, parent: Node) -> Directive | None:
        token, context, table = statement.name, parent.spec.name, self.table
        name = token.text
        spec = table.find(name, context)
        if spec is not None:
            return spec
        if name in table.foreign:
            foreign = table.foreign[name]
            message = f"{foreign.whose} {quoted(name)} is not available"
            self.report.error(token, message, foreign.hint)
            return None
        elsewhere = table.named(name)
        if elsewhere:
            contexts = " or ".join(quoted(c) for d in elsewhere for c in d.contexts)
            message = f'{quoted(name)} is not allowed in "{context}"'
            self.report.error(token, message, f"it belongs in {contexts}")
            return None
        guess = did_you_mean(name, table.names_in(context)) or did_you_mean(name, table.names())
        message = f'unknown directive {quoted(name)} in "{context}"{guess}'
        self.report.error(token, message, _strange_blank(name))
        return None

    def _stray(self, statement: Statement, parent: Node) -> None:
        """Looks into a block that is misspelt or misplaced, by what it was probably meant to be."""
        if statement.block is None:
            return
        name = statement.name.text
        meant = nearest(name, self.table.names_in(parent.spec.name)) or name
        specs = [spec for spec in self.table.named(meant) if spec.block]
        if specs and not specs[0].free:
            self._block(statement.block, Node(specs[0], statement.name))

    def _one(self, statement: Statement, spec: Directive) -> Node | None:
        if spec.block and statement.block is None:
            message = f'{quoted(spec.name)} needs a block: no opening "{{"'
            self.report.error(statement.name, message)
            return None
        node = Node(spec, statement.name, statement.args)
        good = check_args(node, self.known, self.report)
        if statement.block is not None:
            if not spec.block:
                message = f"{quoted(spec.name)} takes no block"
                self.report.error(statement.name, message, 'end it with ";"')
                return None
            if spec.free:
                node.lines = statement.block
            else:
                self._block(statement.block, node)
        return node if good else None


def _strange_blank(text: str) -> str:
    """Text copied from web pages has blanks that only look like blanks."""
    for char in text:
        if char.isspace() or char in "\u200b\u2060\ufeff":
            return f"it holds the character U+{ord(char):04X}; write an ordinary blank"
    return ""
