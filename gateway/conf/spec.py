"""What a directive is: the record type of the one table (`directives.py`) and the kinds of its
arguments.

The table is data. Checking (`check.py`), suggestions, `docs/directives.md` and
`examples/full.conf` are all made from it, so a directive is described once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "word",  # any text that is not empty
    "text",  # any text, also empty
    "name",  # letters, digits, "_", "-", "."
    "path",  # a file name, relative to the prefix
    "flag",  # on | off
    "time",  # 10s, 500ms, 1m30s; a plain number is seconds
    "size",  # 512, 64k, 64m, 1g; a plain number is bytes
    "int",
    "choice",  # one of `choices`
    "header",  # an HTTP field name
    "template",  # text with $variables
    "secret",  # file:PATH, env:NAME, or the value itself (with a warning)
    "regex",
    "variable",  # $name
    "network",  # an address, a network in CIDR form, unix: or all
    "uri",  # begins with "/", no blanks
]
Reload = Literal["live", "restart"]


@dataclass(frozen=True, slots=True)
class Arg:
    """One positional argument. `choices` are words taken literally, beside what the kind accepts.
    `low` and `high` bound numbers, in seconds or bytes."""

    name: str
    kind: Kind = "word"
    low: float = 0
    high: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    many: bool = False  # takes all arguments from here on


@dataclass(frozen=True, slots=True)
class Param:
    """`name=value`, or the bare word `name` where `arg` is None; behind the arguments."""

    name: str
    arg: Arg | None = None
    many: bool = False
    required: bool = False


@dataclass(frozen=True, slots=True)
class Directive:
    """One entry of the table. `default` is as it would be written, "" where there is none."""

    name: str
    contexts: tuple[str, ...]
    args: tuple[Arg, ...] = ()
    params: tuple[Param, ...] = ()
    block: bool = False
    free: bool = False  # its lines are no directives
    repeat: bool = False  # may stand several times in one block
    default: str = ""
    doc: str = ""  # one sentence
    note: str = ""  # how to choose, where it differs from nginx
    wrong: str = ""  # when it is wrong
    example: str = ""
    see: tuple[str, ...] = ()
    reload: Reload = "live"
    since: str = "0.1"

    @property
    def syntax(self) -> str:
        words = [self.name, *(_arg_syntax(arg) for arg in self.args)]
        words += [_param_syntax(param) for param in self.params]
        return " ".join(words) + (" { ... }" if self.block else ";")

    @property
    def min_args(self) -> int:
        return sum(not arg.optional for arg in self.args)

    @property
    def max_args(self) -> int | None:
        """None: no limit."""
        return None if any(arg.many for arg in self.args) else len(self.args)

    @property
    def unit(self) -> str:
        """The unit and range of the values, for the reference; "" where there is nothing to say."""
        kinds = {arg.kind: arg for arg in self.args}
        kinds.update({p.arg.kind: p.arg for p in self.params if p.arg is not None})
        return "; ".join(unit for arg in kinds.values() if (unit := _unit(arg)))


def _arg_syntax(arg: Arg) -> str:
    words = list(arg.choices)
    if arg.kind == "flag":
        words += ["on", "off"]
    elif arg.kind != "choice":
        words.insert(0, "$NAME" if arg.kind == "variable" else arg.name.upper())
    text = " | ".join(words) + (" ..." if arg.many else "")
    return f"[{text}]" if arg.optional else text


def _param_syntax(param: Param) -> str:
    if param.arg is None:
        return f"[{param.name}]"
    value = "|".join(param.arg.choices) if param.arg.kind == "choice" else param.arg.name.upper()
    if param.required:
        return f"{param.name}={value}"
    return f"[{param.name}={value}]" + (" ..." if param.many else "")


def _unit(arg: Arg) -> str:
    if arg.kind == "time":
        return "time (ms, s, m, h, d; a plain number is seconds)"
    if arg.kind == "size":
        return "size (k, m, g; a plain number is bytes)"
    if arg.kind == "int" and arg.high is not None and arg.high > arg.low:
        return f"{arg.low:.0f} to {arg.high:.0f}"
    return ""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A directive of another program's that is not ours; `hint` says what to do instead."""

    name: str
    hint: str
    whose: str = "nginx's"


class Table:
    """The registry: lookup by name and context, and the parser's `Grammar`."""

    def __init__(self, directives: Iterable[Directive], foreign: Iterable[Foreign]) -> None:
        self.directives = tuple(directives)
        self.foreign = {entry.name: entry for entry in foreign}
        self._free = frozenset(entry.name for entry in self.directives if entry.free)
        self._by_name: dict[str, list[Directive]] = {}
        self._by_place: dict[tuple[str, str], Directive] = {}
        for directive in self.directives:
            self._by_name.setdefault(directive.name, []).append(directive)
            for context in directive.contexts:
                assert (directive.name, context) not in self._by_place, directive.name
                self._by_place[directive.name, context] = directive
        self._names: dict[str, list[str]] = {}
        for name, context in sorted(self._by_place):
            self._names.setdefault(context, []).append(name)

    def find(self, name: str, context: str) -> Directive | None:
        return self._by_place.get((name, context))

    def named(self, name: str) -> list[Directive]:
        return self._by_name.get(name, [])

    def names_in(self, context: str) -> list[str]:
        return self._names.get(context, [])

    def names(self) -> list[str]:
        return sorted(self._by_name)

    def knows(self, name: str) -> bool:
        return name in self._by_name or name in self.foreign

    def allows(self, name: str, context: str, block: bool) -> bool:
        directive = self._by_place.get((name, context))
        foreign = name in self.foreign and context not in self._free
        return foreign or (directive is not None and directive.block == block)

    def is_block(self, name: str, context: str) -> bool:
        directive = self._by_place.get((name, context))
        return directive is not None and directive.block

    def free_behind(self, name: str) -> int | None:
        return len(self._by_name[name][0].args) if name in self._free else None

    def begins(self, name: str, context: str) -> bool:
        # Short names of nginx ("ssl", "set") are as likely an argument on a line of its own.
        foreign = name in self.foreign and "_" in name and context not in self._free
        return (name, context) in self._by_place or foreign
