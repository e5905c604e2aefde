"""Built-in conversations on which a second renderer of a template is compared with Jinja2.

They hold what templates branch on: a system prompt or none, an empty one, several turns, tools with
nested schemas, calls with all kinds of arguments, parallel calls, results, reasoning, text in many
scripts and text that looks like a template, content as string and as parts, a prompt for the reply
or none.
"""

from __future__ import annotations

from typing import Any

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Ort, e.g. \"Zürich\" or 北京 & <more>"},
        "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        "days": {"type": ["integer", "null"], "minimum": 1},
        "where": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {}}]},
        "flags": {"type": "array", "items": {"type": "boolean"}},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather 'now'.",
                                      "parameters": _SCHEMA}},
    {"type": "function", "function": {"name": "list_files", "description": None,
                                      "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "stop", "description": "Ends.", "parameters": None,
                                      "strict": True}},
]
_UNICODE = "Grüße 🙂👩‍👩‍👧 שלום नमस्ते \u202e\u0000\u0007\t\r\n{{ x }} {% if %} <|im_end|> </s> \\n"


def _call(name: str, arguments: dict[str, Any], at: int = 0) -> dict[str, Any]:
    return {"id": f"call{at:05d}", "type": "function",
            "function": {"arguments": arguments, "name": name}}


def _says(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


_ARGUMENTS = {"city": "Zürich \"x\"", "days": 3, "big": 2**53, "neg": -1, "none": None, "yes": True,
              "list": [1, "a", {"b": []}], "empty": {}}
_CHATS: list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = [
    ([_says("user", "Hi")], None),
    ([_says("system", "Be terse."), _says("user", "Hi"), _says("assistant", "Hello"),
      _says("user", " And? \n")], None),
    ([_says("system", ""), _says("user", "")], None),
    ([_says("user", _UNICODE), _says("assistant", _UNICODE), _says("user", _UNICODE)], None),
    ([_says("system", "S"), _says("user", "weather?")], _TOOLS),
    ([_says("user", "weather?")], _TOOLS[:1]),
    ([_says("user", "w?"), _says("assistant", "", tool_calls=[_call("get_weather", _ARGUMENTS)]),
      _says("tool", "{\"t\": -3, \"ok\": true}", tool_call_id="call00000"),
      _says("user", "thanks")], _TOOLS),
    ([_says("user", "w?"),
      _says("assistant", "I look.", tool_calls=[_call("get_weather", {}, 1),
                                                _call("list_files", {"p": "/"}, 2)]),
      _says("tool", "a", tool_call_id="call00001"), _says("tool", "b", tool_call_id="call00002"),
      _says("assistant", "done"), _says("user", "more")], _TOOLS),
    ([_says("user", "12*12?"),
      _says("assistant", "144", reasoning="twelve\nsquared", reasoning_content="twelve\nsquared"),
      _says("user", "root?")], None),
    ([_says("user", "q"), _says("assistant", "<think>\nhm\n</think>\n\nyes"), _says("user", "r")],
     None),
    ([_says("user", "Hi", name="alice"), _says("assistant", "a")], None),
    ([_says("user", "a"), _says("user", "b")], None),
    ([_says("assistant", "a")], None),
]


def _as_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**m, "content": [{"type": "text", "text": m["content"]}]} if m["role"] != "tool" else m
        for m in messages
    ]


CONVERSATIONS: tuple[dict[str, Any], ...] = tuple(
    {"messages": read(messages), "tools": tools, "add_generation_prompt": add,
     "arguments": arguments}
    for messages, tools in _CHATS
    for read in (list, _as_parts)
    for add, arguments in (
        (True, {}),
        (False, {}),
        (True, {"enable_thinking": False, "thinking": True, "reasoning_effort": "high"}),
    )
)
