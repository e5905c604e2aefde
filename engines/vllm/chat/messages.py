"""Messages of a chat request as vLLM hands them to a template.

vLLM reads a message as one of several typed forms; which of them decides which content parts it
accepts (forms.py). Then content becomes a string or a list of parts, by the template's format,
tool-call arguments become objects, and a developer's messages become the system's where a template
knows no such role.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from engines.vllm.chat.calls import developer_tools, read_arguments, tool_calls
from engines.vllm.chat.content_format import ContentFormat
from engines.vllm.chat.forms import check_parts, general_form, own_form, reasoning_of
from engines.vllm.chat.outcome import Json, Message, NotKnown, Why, odd, refused
from engines.vllm.chat.parts import part_text
from engines.vllm.chat.tools import check_numbers

BILLING = "x-anthropic-billing-header"


class Kind(Enum):
    """Where messages come from: vLLM reads them with more or less care."""

    CHAT = auto()  # the chat endpoint: `reasoning_content` counts as `reasoning`
    OTHER = auto()  # other endpoints that take messages: it does not
    MADE = auto()  # put together from another endpoint's items: not read as a typed form


def conversation(
    messages: Json, form: ContentFormat, kind: Kind = Kind.CHAT, exact: bool = True
) -> list[Message]:
    """Messages as a template that knows every role takes them. Not `exact`: parsed by orjson.

    Raises NotKnown, or InexactNumber.
    """
    if type(messages) is not list:
        raise refused("messages: not a list")
    as_parts = form == "openai"
    if kind is Kind.MADE:
        return [_made_message(given, as_parts, exact) for given in messages]
    if kind is Kind.OTHER:
        messages = [_without(given, "reasoning_content") for given in messages]
    return [_message(given, as_parts, exact) for given in messages]


def _without(given: Json, name: str) -> Json:
    if type(given) is not dict or name not in given:
        return given
    return {key: value for key, value in given.items() if key != name}


def _message(given: Json, as_parts: bool, exact: bool) -> Message:
    if type(given) is not dict:
        raise refused("messages: not an object")
    role, content = given.get("role"), given.get("content")
    if type(role) is not str or "author" in given:
        raise odd("messages: no role")
    if type(content) is str:
        # The bulk of all messages, read without looking at forms.
        if role in ("user", "system", "assistant") and len(given) == 2:
            return {"role": role, "content": _from_text(content, role, as_parts)}
        if role == "tool" and len(given) == 3 and type(given.get("tool_call_id")) is str:
            return {"role": role, "content": content, "tool_call_id": given["tool_call_id"]}
    if not exact:
        check_numbers(given)
    return _any_message(given, role, as_parts)


def _any_message(given: Message, role: str, as_parts: bool) -> Message:
    calls = tool_calls(given, role)
    if type(given.get("content")) is list:
        check_parts(given, role, calls)
    elif not (own_form(given, role, calls) or general_form(given, calls)):
        raise refused(f"messages: not a message of role {role!r}")
    return _put_together(given, role, calls, as_parts)


def _made_message(given: Message, as_parts: bool, exact: bool) -> Message:
    """Calls keep the order of their fields; arguments still become objects."""
    if not exact:
        check_numbers(given)
    calls = given.get("tool_calls")
    if calls is not None:
        calls = [
            {**call, "function": {**call["function"],
                                  "arguments": read_arguments(call["function"]["arguments"])}}
            for call in calls
        ]
    return _put_together(given, given["role"], calls, as_parts)


def _put_together(
    given: Message, role: str, calls: list[Message] | None, as_parts: bool
) -> Message:
    content = given.get("content")
    if type(content) is list:
        read = _from_parts(content, role, as_parts)
    elif content is None:
        read = [] if as_parts else ""
    else:
        read = _from_text(content, role, as_parts)
    message: Message = {"role": role, "content": read}
    if role == "assistant":
        _add_assistant(message, given, calls)
    elif role == "tool":
        if "tool_call_id" in given:
            message["tool_call_id"] = given["tool_call_id"]
        if type(read) is list:
            message["content"] = _tool_result(read)
    for name in ("name", "task"):
        if type(given.get(name)) is str:
            message[name] = given[name]
    if role == "developer":
        message["tools"] = developer_tools(given)
    return message


def _add_assistant(message: Message, given: Message, calls: list[Message] | None) -> None:
    if calls:
        message["tool_calls"] = calls
    reasoning = reasoning_of(given)
    if reasoning is not None:
        message["reasoning"] = message["reasoning_content"] = reasoning


# -- content


def _from_text(text: str, role: str, as_parts: bool) -> Any:
    if role == "system" and text.startswith(BILLING):
        text = text.partition("\n")[2]
        if not text:
            return [] if as_parts else ""
    return [{"type": "text", "text": text}] if as_parts else text


def _from_parts(parts: list[Json], role: str, as_parts: bool) -> Any:
    read = []
    for part in parts:
        if role == "system":
            part = _without_billing(part)
            if part is None:
                continue
        text = part_text(part, as_parts)
        if text:
            read.append(text)
    return read if as_parts else "\n".join(read)


def _without_billing(part: Json) -> Json:
    """One client writes a line that changes with each request; None: nothing is left."""
    if type(part) is str:
        text: Json = part
    else:
        text = part.get("text") if part.get("type") == "text" else None
    if type(text) is not str or not text.startswith(BILLING):
        return part
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return rest if type(part) is str else {**part, "text": rest}


def _tool_result(parts: list[Message]) -> Any:
    """Templates take a tool's result as a string; references to tools stay parts."""
    if any(part.get("type") != "text" for part in parts):
        return parts
    texts = [part.get("text", "") for part in parts]
    if not all(type(text) is str for text in texts):
        raise refused("messages: a part of a tool result has no text")
    return "\n".join(texts)


# -- the developer role


def without_developer(messages: list[Message]) -> list[Message]:
    """Developer messages as system messages, then all of those merged into one at the front."""
    if not any(message["role"] == "developer" for message in messages):
        return messages
    read = [
        {**_without(message, "tools"), "role": "system"}
        if message["role"] == "developer" else message
        for message in messages
    ]
    systems = [at for at, message in enumerate(read) if message["role"] == "system"]
    if systems == [0]:
        return read
    texts = [text for at in systems if (text := _all_text(read[at].get("content", "")))]
    rest = [message for message in read if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest]


def _all_text(content: Any) -> str:
    if type(content) is list:
        texts = [part["text"] for part in content if "text" in part]
        if not all(type(text) is str for text in texts):
            raise NotKnown(Why.REFUSED, "messages: a part has no text")
        return "\n".join(texts)
    text: str = content
    return text
