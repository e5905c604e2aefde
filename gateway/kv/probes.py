"""Conversations on which a tokenizer here is compared with an engine's own.

They hold what templates branch on: several turns, an empty system prompt, tools and their calls,
text in many scripts, and text that looks like a template. Pure but for the question asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from engines.vllm.chat import Ids, Texts
from gateway.kv.engine_tokens import NoIds, Question

if TYPE_CHECKING:
    from gateway.kv.vocabulary import Vocabulary

Body = dict[str, Any]
Ask = Callable[[Question], Awaitable[list[int]]]

_UNICODE = "Grüße 🙂👩‍👩‍👧 שלום नमस्ते 北京 \t\r\n{{ x }} {% if %} <|im_end|> </s> 0x1F 3.14159  end"
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "e.g. \"Zürich\""},
                    "unit": {"type": "string", "enum": ["c", "f"]},
                },
                "required": ["city"],
            },
        },
    }
]


def _says(role: str, content: Any, **more: Any) -> Body:
    return {"role": role, "content": content, **more}


_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Zürich", "unit": "c"}'},
}
CHATS: tuple[tuple[str, Body], ...] = (
    ("one turn", {"messages": [_says("user", "Hi there")]}),
    (
        "several turns",
        {"messages": [_says("system", "Be terse."), _says("user", "Hi"),
                      _says("assistant", "Hello!"), _says("user", " And?\n\nMore. ")]},
    ),
    ("an empty system prompt", {"messages": [_says("system", ""), _says("user", "x")]}),
    (
        "unicode",
        {"messages": [_says("user", _UNICODE), _says("assistant", _UNICODE),
                      _says("user", _UNICODE)]},
    ),
    ("tools", {"messages": [_says("user", "weather?")], "tools": _TOOLS}),
    (
        "a tool's call",
        {"messages": [_says("user", "weather?"), _says("assistant", None, tool_calls=[_CALL]),
                      _says("tool", '{"t": -3}', tool_call_id="call00001"),
                      _says("user", "thanks")], "tools": _TOOLS},
    ),
    (
        "content in parts",
        {"messages": [_says("user", [{"type": "text", "text": "a"},
                                     {"type": "text", "text": "b"}])]},
    ),
)  # fmt: skip
TEXT = f"A plain text.\n\n\tdef f(x):\n        return x ** 2  # {_UNICODE}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`agrees` None: nothing could be compared. `why` is for people."""

    agrees: bool | None
    why: str = ""


def first(model: str) -> tuple[str, bytes]:
    """The path and body of a probe: to see whether an engine tokenises at all."""
    return "/v1/chat/completions", orjson.dumps({"model": model, **CHATS[0][1]})


async def compare(vocabulary: Vocabulary, model: str, ask: Ask) -> Verdict:
    """Asks an engine for the ids of every probe. Raises NoIds only where none can be had at all."""
    compared, last = 0, NoIds("unreachable")
    bodies = [("/v1/chat/completions", name, {"model": model, **body}) for name, body in CHATS]
    bodies.append(("/v1/completions", "a text", {"model": model, "prompt": TEXT}))
    for path, name, body in bodies:
        raw = orjson.dumps(body)
        here = ids_of(vocabulary, path, raw)
        if here is None:
            continue
        try:
            there = await ask(Question(path, raw))
        except NoIds as error:
            last = error
            if error.reason == "refused":
                continue
            raise
        if here != there:
            return Verdict(False, difference(name, here, there))
        compared += 1
    if compared:
        return Verdict(True, f"{compared} probes agree")
    if last.reason != "refused":
        return Verdict(None, "no probe is understood here")
    return Verdict(None, "the engine refuses every probe")


def ids_of(vocabulary: Vocabulary, path: str, body: bytes) -> list[int] | None:
    """The ids as they are made here; None where they are not known."""
    found = vocabulary.read(path.encode(), body)
    if isinstance(found, Ids):
        return list(found.prompts[0])
    if not isinstance(found, Texts):
        return None
    try:
        packed = vocabulary.tokenizer.encode(found.texts[0], found.add_special_tokens)
    except ValueError:
        return None
    return list(memoryview(packed).cast("I"))


def difference(name: str, here: list[int], there: list[int]) -> str:
    """Where two lists of ids part."""
    at = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), None)
    if at is None:
        return f"probe `{name}` has {len(here)} tokens here, {len(there)} in the engine"
    return f"probe `{name}` differs at token {at}: {here[at]} here, {there[at]} in the engine"
