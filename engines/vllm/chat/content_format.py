"""How a chat template wants a message's content, read off its syntax tree.

A template that loops over a message's content wants content as a list of parts ("openai"); any
other gets it joined into one string. This follows vLLM 0.32's rule, its blind spots included: it
looks at names only, not at scopes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


def content_format(tree: nodes.Template) -> ContentFormat:
    """Raises nothing: a tree the rule cannot handle counts as "string", as in vLLM."""
    try:
        return "openai" if _loops_over_content(tree) else "string"
    except _Unexpected:
        return "string"


class _Unexpected(Exception):
    """A loop or assignment that unpacks where one name was expected."""


def _loops_over_content(tree: nodes.Template) -> bool:
    messages = set(_message_names(tree))
    in_macros, passed = _content_parameters(tree, messages)
    for loop in tree.find_all(nodes.For):
        iterated = loop.iter
        if any(_reaches(iterated, name, "content") for name in messages):
            _one_name(loop.target)
            return True
        if not isinstance(iterated, nodes.Name):
            continue
        by_macro = iterated.name in passed.get(id(loop), ())
        if by_macro or (id(loop) not in in_macros and iterated.name == "content"):
            _one_name(loop.target)
            return True
    return False


def _content_parameters(
    tree: nodes.Template, messages: set[str]
) -> tuple[set[int], dict[int, set[str]]]:
    """Loops inside macros, and for each the macro parameters that are given message content."""
    in_macros: set[int] = set()
    passed: dict[int, set[str]] = {}
    calls = [
        (call.node.name, call)
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Name)
    ]
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        given: set[str] = set()
        for called, call in calls:
            if called != macro.name:
                continue
            pairs = list(zip(names, call.args, strict=False))
            pairs += [(k.key, k.value) for k in call.kwargs if k.key in names]
            given.update(
                name for name, value in pairs
                if any(_reaches(value, message, "content") for message in messages)
            )
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            if given:
                passed[id(loop)] = given
    return in_macros, passed


def _message_names(tree: nodes.Template) -> Iterator[str]:
    """Loop variables that stand for one message."""
    lists = set(_aliases(tree, "messages"))
    for loop in tree.find_all(nodes.For):
        if any(_reaches(loop.iter, name) for name in lists):
            yield _one_name(loop.target)


def _aliases(tree: nodes.Template, name: str) -> Iterator[str]:
    """Names assigned from `name`, or from a slice or filter of it, transitively."""
    seen, waiting = {name}, [name]
    while waiting:
        current = waiting.pop()
        yield current
        for assign in tree.find_all(nodes.Assign):
            if _reaches(assign.node, current):
                target = _one_name(assign.target)
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)


def _one_name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unexpected
    return target.name


def _reaches(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether an expression is variable `name` (or its `key`), filtered, tested or sliced."""
    while True:
        if isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
            continue
        break
    if key is None:
        return _is_name(node, name)
    if isinstance(node, nodes.Getitem):
        constant = isinstance(node.arg, nodes.Const) and node.arg.value == key
        return constant and _is_name(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == key and _is_name(node.node, name)


def _is_name(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
