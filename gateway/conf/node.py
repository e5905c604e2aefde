"""A checked statement: what the table says of it, and its values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.conf.model import Place
from gateway.conf.parser import Statement
from gateway.conf.sources import Token
from gateway.conf.spec import Directive
from gateway.conf.suggest import nearest


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
    lines: list[Statement] = field(default_factory=list)  # of a block that holds no directives
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
