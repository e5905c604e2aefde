"""Tool definitions as vLLM hands them to a template: a model dump of the request's.

`type`, `function` and in it `name`, `description` (null where absent), `parameters` (null where
absent), `strict` and `defer_loading` only where given; unknown fields are dropped. A set of tools
comes with every turn of a conversation, so dumps, and the JSON a template makes of them, are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any, TypeAlias

import orjson

from engines.vllm.chat.outcome import Json, odd, refused

Tool: TypeAlias = dict[str, Any]

TOOL_BYTES_MAX = 16 << 20  # of all sets kept, as they were sent
TOOL_SET_BYTES_MAX = 256 << 10  # a larger set is dumped anew for each request
FORMS_MAX = 8  # ways to write one object as JSON that are remembered

# An integer beyond 64 bits arrives as a float where orjson parsed it.
BIG = 2.0**63


class InexactNumber(Exception):
    """A number that orjson may have rounded: the body has to be parsed by `json`."""


def check_numbers(value: Json) -> None:
    """Raises InexactNumber where `value` holds a number that orjson may have read differently."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        kind = type(current)
        if kind is float:
            if not -BIG < current < BIG:
                raise InexactNumber
        elif kind is int:
            if not -BIG <= current < 2 * BIG:
                raise InexactNumber
        elif kind is dict:
            waiting.extend(current.values())
        elif kind is list:
            waiting.extend(current)


def dump_tool(tool: Json) -> Tool:
    """One tool definition. Raises NotKnown."""
    if type(tool) is not dict or tool.get("type", "function") != "function":
        raise refused("tools: not a function tool")
    given = tool.get("function")
    if type(given) is not dict or type(given.get("name")) is not str:
        raise refused("tools: a function needs a name")
    deferred = _flag(tool, "defer_loading")
    function: Tool = {"name": given["name"], "description": given.get("description"),
                      "parameters": given.get("parameters")}
    if type(function["description"]) not in (str, type(None)):
        raise refused("tools: description is not a string")
    if type(function["parameters"]) not in (dict, type(None)):
        raise refused("tools: parameters are not an object")
    strict = _flag(given, "strict")
    if strict is not None:
        function["strict"] = strict
    inner = _flag(given, "defer_loading")
    inner = deferred if inner is None else inner
    if inner is not None:
        function["defer_loading"] = inner
    dumped: Tool = {"type": "function", "function": function}
    if deferred is not None:
        dumped["defer_loading"] = deferred
    return dumped


def _flag(holder: Tool, name: str) -> bool | None:
    value = holder.get(name)
    if value is not None and type(value) is not bool:
        raise odd(f"tools: {name} is not a boolean")
    return value


class ToolSets:
    """Dumped sets of tools by what was sent. Safe for threads; a lost race costs one dump.

    `known` maps the id of a remembered object to it and its JSON by form: the objects live as long
    as their entry, and whoever looks up compares identity.
    """

    def __init__(self, bytes_max: int = TOOL_BYTES_MAX) -> None:
        self.known: dict[int, tuple[Any, dict[str, str]]] = {}
        self._sets: OrderedDict[bytes, list[Tool]] = OrderedDict()
        self._bytes_max = bytes_max
        self._lock = Lock()
        self.bytes = 0  # of the sets as they were sent
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._sets)

    def dump(self, tools: list[Json], exact: bool) -> list[Tool]:
        """The dump of `tools`; callers must not change it. Not `exact`: parsed by orjson.

        Raises NotKnown, or InexactNumber where the numbers were not exact after all.
        """
        if exact and not _plain(tools):
            return [dump_tool(tool) for tool in tools]
        try:
            key = orjson.dumps(tools)
        except (TypeError, ValueError):  # lone surrogates, nested too deep
            return [dump_tool(tool) for tool in tools]
        with self._lock:
            found = self._sets.get(key)
            if found is not None:
                self._sets.move_to_end(key)
                self.hits += 1
                return found
        if not exact:
            check_numbers(tools)
        dumped = [dump_tool(tool) for tool in tools]
        if len(key) <= TOOL_SET_BYTES_MAX:
            self._keep(key, dumped)
        return dumped

    def _keep(self, key: bytes, dumped: list[Tool]) -> None:
        with self._lock:
            self.misses += 1
            if key in self._sets:
                return
            self._sets[key] = dumped
            self.bytes += len(key)
            for part in _parts(dumped):
                self.known[id(part)] = (part, {})
            while self.bytes > self._bytes_max:
                old, gone = self._sets.popitem(last=False)
                self.bytes -= len(old)
                for part in _parts(gone):
                    self.known.pop(id(part), None)


def _plain(value: Json) -> bool:
    """Whether every number reads the same after orjson: what else is never kept."""
    try:
        check_numbers(value)
    except InexactNumber:
        return False
    return True


def _parts(dumped: list[Tool]) -> list[Any]:
    """The objects of a set that templates write as JSON."""
    parts: list[Any] = [dumped]
    for tool in dumped:
        function = tool["function"]
        parts += [tool, function]
        if function["parameters"] is not None:
            parts.append(function["parameters"])
    return parts
