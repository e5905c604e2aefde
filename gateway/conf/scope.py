"""Inheritance: what holds inside a block, seen through the blocks around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.conf.directives import TABLE
from gateway.conf.node import Node
from gateway.conf.spec import Table
from gateway.conf.values import convert


@dataclass(frozen=True, slots=True)
class Scope:
    """A block and the blocks around it, innermost first."""

    blocks: tuple[Node, ...]

    def inner(self, block: Node) -> Scope:
        return Scope((block, *self.blocks))

    def one(self, name: str) -> Node | None:
        """The statement that holds here: of the innermost block that has one."""
        for block in self.blocks:
            node = block.one(name)
            if node is not None:
                return node
        return None

    def all(self, name: str) -> list[Node]:
        """The statements of the innermost block that has any: one drops all from outside."""
        for block in self.blocks:
            if block.has(name):
                return block.all(name)
        return []

    def any_of(self, *names: str) -> list[Node]:
        """As `all`, for several names that are one list together, in file order."""
        for block in self.blocks:
            if block.has(*names):
                return [node for node in block.children if node.spec.name in names]
        return []

    def value(self, name: str) -> Any:
        """The first argument of the statement that holds here, or the table's default."""
        node = self.one(name)
        if node is not None:
            return node.get(node.spec.args[0].name)
        return default(name, self.blocks[0].spec.name)

    def has(self, name: str) -> bool:
        return any(block.has(name) for block in self.blocks)


def default(name: str, context: str, table: Table = TABLE) -> Any:
    """The table's default of a directive's first argument, as a value."""
    spec = table.find(name, context) or table.named(name)[0]
    return convert(spec.args[0], spec.default.split()[0])
