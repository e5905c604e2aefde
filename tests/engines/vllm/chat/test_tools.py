"""Dumps of tool definitions, and what is remembered of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.vllm.chat import NotKnown, Why
from engines.vllm.chat.tools import (
    TOOL_SET_BYTES_MAX,
    InexactNumber,
    ToolSets,
    check_numbers,
    dump_tool,
)


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


@pytest.mark.parametrize(("given", "expected"), [
    (tool(), tool(description=None, parameters=None)),
    ({"function": {"parameters": {"b": 1, "a": 2}, "name": "f", "extra": 1}, "other": 2},
     tool(description=None, parameters={"b": 1, "a": 2})),
    (tool(strict=True), tool(description=None, parameters=None, strict=True)),
    (tool(strict=None), tool(description=None, parameters=None)),
    ({**tool(), "defer_loading": True},
     {**tool(description=None, parameters=None, defer_loading=True), "defer_loading": True}),
    ({**tool(defer_loading=False), "defer_loading": None},
     tool(description=None, parameters=None, defer_loading=False)),
])  # fmt: skip
def test_dump(given: Any, expected: Any) -> None:
    assert json.dumps(dump_tool(given)) == json.dumps(expected)


@pytest.mark.parametrize(("given", "why"), [
    (5, Why.REFUSED), ({}, Why.REFUSED), ({"type": "custom"}, Why.REFUSED),
    (tool(name=5), Why.REFUSED), (tool(description=5), Why.REFUSED),
    (tool(parameters=[]), Why.REFUSED), (tool(strict="true"), Why.ODD),
])  # fmt: skip
def test_what_is_no_tool(given: Any, why: Why) -> None:
    with pytest.raises(NotKnown) as caught:
        dump_tool(given)
    assert caught.value.why is why


def test_equal_sets_are_dumped_once() -> None:
    sets = ToolSets()
    first = sets.dump([tool()], exact=False)
    assert sets.dump([tool()], exact=False) is first
    assert sets.dump([tool("g")], exact=False) is not first
    assert (sets.hits, sets.misses, len(sets)) == (1, 2, 2)


def test_the_oldest_sets_go_when_there_are_too_many_bytes() -> None:
    sets = ToolSets(bytes_max=300)
    for name in ("a", "b", "a", "c", "d", "a", "e", "f"):
        sets.dump([tool(name, description="x" * 40)], exact=False)
        assert sets.bytes <= 300
        held = {id(part) for part, _ in sets.known.values()}
        assert held == set(sets.known)
    assert len(sets) == 2
    assert sets.dump([tool("f", description="x" * 40)], exact=False) and sets.hits


def test_a_large_set_is_not_kept() -> None:
    sets = ToolSets()
    sets.dump([tool(description="x" * TOOL_SET_BYTES_MAX)], exact=False)
    assert (len(sets), sets.bytes, sets.known) == (0, 0, {})


@pytest.mark.parametrize("number", [1e25, float("nan"), 2**64, -(2**63) - 1])
def test_numbers_orjson_may_have_changed(number: float) -> None:
    with pytest.raises(InexactNumber):
        check_numbers({"a": [{"b": number}]})
    sets = ToolSets()
    dumped = sets.dump([tool(parameters={"const": number})], exact=True)
    assert dumped[0]["function"]["parameters"]["const"] is number
    assert len(sets) == 0


def test_ordinary_numbers_are_exact() -> None:
    check_numbers([1, -1, 2**63, 2**64 - 1, -(2**63), 1.5, 1e18, 0.0, True, None, "1e99"])
