"""Which typed form vLLM reads a message as: that of its role, or a general one.

A form takes a message or not; of two that do, the one that recognises more fields wins, and of
equals that of the role. Unknown fields are kept either way. What hangs on it are the parts of a
content list: the form of a role takes few kinds, and is lenient only until the list is read.
"""

from __future__ import annotations

from engines.vllm.chat.calls import developer_tools, tool_fields
from engines.vllm.chat.outcome import Json, Message, refused
from engines.vllm.chat.parts import general_count, own_form_takes

# Fields of the form of each role, beside those that decide by their values.
_OWN_FIELDS = {
    "system": ("content", "role", "name"),
    "developer": ("content", "role", "name"),
    "user": ("content", "role", "name"),
    "assistant": ("role", "audio", "content", "function_call", "name", "refusal", "tool_calls"),
    "tool": ("content", "role", "tool_call_id"),
    "function": ("content", "name", "role"),
}
_GENERAL_FIELDS = ("role", "content", "name", "tool_call_id", "tool_calls", "reasoning", "tools",
                   "task")
_ABSENT = object()


def reasoning_of(given: Message) -> Json:
    """`reasoning`, or the older `reasoning_content` where that is null or absent."""
    reasoning = given.get("reasoning")
    return given.get("reasoning_content") if reasoning is None else reasoning


def check_parts(given: Message, role: str, calls: list[Message] | None) -> None:
    """Raises NotKnown where vLLM would not take this content list."""
    parts = given["content"]
    own, general = own_form(given, role, calls), general_form(given, calls)
    inner = general_count(parts)
    if inner is None or not general:
        general, inner = False, 0
    if own and general:
        own_count = sum(name in given for name in _OWN_FIELDS[role])
        own_count += len(given.get("audio") or ()) and 1
        own_count += 2 if given.get("function_call") else 0
        present = {**given, "reasoning": 0} if reasoning_of(given) is not None else given
        count = sum(name in present for name in _GENERAL_FIELDS) + inner
        count += 5 * len(calls or ()) + tool_fields(given.get("tools"))
        general = count > own_count
    if general:
        return
    if not own or not all(own_form_takes(role, part) for part in parts):
        raise refused(f"messages: content parts not taken from role {role!r}")


def own_form(given: Message, role: str, calls: list[Message] | None) -> bool:
    content = given.get("content", _ABSENT)
    kind = type(content)
    if role not in _OWN_FIELDS:
        return False
    if role == "assistant":
        if "tool_calls" in given and calls is None:
            return False
        if type(given.get("refusal")) not in (str, type(None)):
            return False
        if not (_is_object(given, "audio", "id") and _is_object(given, "function_call", "name",
                                                                 "arguments")):
            return False
        return (content is _ABSENT or content is None or kind in (str, list)) and _text_or_absent(
            given, "name"
        )
    if role == "tool":
        return kind in (str, list) and type(given.get("tool_call_id")) is str
    if role == "function":
        return (content is None or kind is str) and type(given.get("name")) is str
    return kind in (str, list) and _text_or_absent(given, "name")


def general_form(given: Message, calls: list[Message] | None) -> bool:
    content = given.get("content", _ABSENT)
    nullable = ("tool_call_id", "reasoning", "task")
    return (
        (content is _ABSENT or type(content) in (str, list))
        and _text_or_absent(given, "name")
        and all(type(given.get(name)) in (str, type(None)) for name in nullable)
        and type(reasoning_of(given)) in (str, type(None))
        and (given.get("tool_calls") is None or calls is not None)
        and (given.get("tools") is None or developer_tools(given) is not given.get("tools"))
    )


def _text_or_absent(given: Message, name: str) -> bool:
    return name not in given or type(given[name]) is str


def _is_object(given: Message, name: str, *strings: str) -> bool:
    value = given.get(name)
    return value is None or (
        type(value) is dict and all(type(value.get(key)) is str for key in strings)
    )
