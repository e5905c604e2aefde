"""Messages of a chat request as vLLM hands them to a template.

vLLM reads a message as one of several typed forms: that of its role, or a general one. Which of
them it takes decides which content parts it accepts, so that choice is followed here (`_Form`).
Then content becomes a string or a list of parts, by the template's format, tool-call arguments
become objects, and a developer's messages become the system's where a template knows no such role.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from engines.vllm.chat.content_format import ContentFormat
from engines.vllm.chat.outcome import Json, NotKnown, Why, odd, refused
from engines.vllm.chat.parts import general_count, own_form_takes, part_text

Message: TypeAlias = dict[str, Any]

BILLING = "x-anthropic-billing-header"

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


def conversation(messages: Json, form: ContentFormat, checked: bool = False) -> list[Message]:
    """Messages as a template that knows every role takes them. Raises NotKnown.

    `checked`: made by us from another endpoint's items, and not read as a typed form.
    """
    if type(messages) is not list:
        raise refused("messages: not a list")
    as_parts = form == "openai"
    if checked:
        return [_plain_message(given, as_parts) for given in messages]
    return [_message(given, as_parts) for given in messages]


def _message(given: Json, as_parts: bool) -> Message:
    if type(given) is not dict:
        raise refused("messages: not an object")
    role, content = given.get("role"), given.get("content", _ABSENT)
    if type(role) is not str or "author" in given:
        raise odd("messages: no role")
    if type(content) is str and role in ("user", "system") and "name" not in given:
        return {"role": role, "content": _from_text(content, role, as_parts)}
    return _any_message(given, role, as_parts)


def _any_message(given: Message, role: str, as_parts: bool) -> Message:
    calls = _calls(given, role)
    if type(given.get("content")) is list:
        _check_parts(given, role, calls)
    elif not (_own_form(given, role, calls) or _general_form(given, calls)):
        raise refused(f"messages: not a message of role {role!r}")
    return _put_together(given, role, calls, as_parts)


def _plain_message(given: Message, as_parts: bool) -> Message:
    """Calls keep the order of their fields; arguments still become objects."""
    calls = given.get("tool_calls")
    if calls is not None:
        calls = [
            {**call, "function": {**call["function"],
                                  "arguments": _arguments(call["function"]["arguments"])}}
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
        message["tools"] = _developer_tools(given)
    return message


def _reasoning(given: Message) -> Json:
    """`reasoning`, or the older `reasoning_content` where that is null or absent."""
    reasoning = given.get("reasoning")
    return given.get("reasoning_content") if reasoning is None else reasoning


def _add_assistant(message: Message, given: Message, calls: list[Message] | None) -> None:
    if calls:
        message["tool_calls"] = calls
    reasoning = _reasoning(given)
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


# -- which form


def _check_parts(given: Message, role: str, calls: list[Message] | None) -> None:
    """Raises NotKnown where vLLM would not take this content list."""
    parts = given["content"]
    own, general = _own_form(given, role, calls), _general_form(given, calls)
    inner = general_count(parts)
    if inner is None or not general:
        general, inner = False, 0
    if own and general:
        own_count = sum(name in given for name in _OWN_FIELDS[role])
        own_count += len(given.get("audio") or ()) and 1
        own_count += 2 if given.get("function_call") else 0
        present = {**given, "reasoning": 0} if _reasoning(given) is not None else given
        count = sum(name in present for name in _GENERAL_FIELDS) + inner
        count += 5 * len(calls or ())
        general = count > own_count
    if general:
        return
    if not own or not all(own_form_takes(role, part) for part in parts):
        raise refused(f"messages: content parts not taken from role {role!r}")


def _own_form(given: Message, role: str, calls: list[Message] | None) -> bool:
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


def _general_form(given: Message, calls: list[Message] | None) -> bool:
    content = given.get("content", _ABSENT)
    nullable = ("tool_call_id", "reasoning", "task")
    return (
        (content is _ABSENT or type(content) in (str, list))
        and _text_or_absent(given, "name")
        and all(type(given.get(name)) in (str, type(None)) for name in nullable)
        and type(_reasoning(given)) in (str, type(None))
        and (given.get("tool_calls") is None or calls is not None)
        and (given.get("tools") is None or _developer_tools(given) is not given.get("tools"))
    )


def _text_or_absent(given: Message, name: str) -> bool:
    return name not in given or type(given[name]) is str


def _is_object(given: Message, name: str, *strings: str) -> bool:
    value = given.get(name)
    return value is None or (
        type(value) is dict and all(type(value.get(key)) is str for key in strings)
    )


# -- tools within messages


def _calls(given: Message, role: str) -> list[Message] | None:
    """Tool calls as a template takes them; None where there are none or they are no such list.

    Raises NotKnown for calls of an assistant that vLLM refuses.
    """
    calls = given.get("tool_calls")
    if calls is None:
        return None
    if type(calls) is not list:
        raise refused("messages: tool_calls is not a list")
    if role == "assistant":
        return [_call(call) for call in calls]
    try:
        return [_call(call) for call in calls]
    except NotKnown:
        return None


def _call(call: Json) -> Message:
    if type(call) is not dict or call.get("type") != "function" or type(call.get("id")) is not str:
        raise refused("messages: a tool call needs an id and the type 'function'")
    given = call.get("function")
    if type(given) is not dict:
        raise refused("messages: a tool call names no function")
    arguments, name = given.get("arguments"), given.get("name")
    if type(arguments) is not str or type(name) is not str:
        raise refused("messages: a tool call needs a name and arguments as a string")
    function = {"arguments": _arguments(arguments), "name": name}
    if len(given) > 2:
        function |= {key: value for key, value in given.items() if key not in function}
    read: Message = {"id": call["id"], "function": function, "type": "function"}
    if len(call) > 3:
        read |= {key: value for key, value in call.items() if key not in read}
    return read


def _arguments(text: str) -> Message:
    """Arguments as an object: {} for what is not one."""
    if not text:
        return {}
    try:
        read = json.loads(text)
    except json.JSONDecodeError:
        return {}
    except (ValueError, RecursionError) as exc:  # a number of thousands of digits, deep nesting
        raise refused("messages: arguments of a tool call cannot be read") from exc
    return read if type(read) is dict else {}


def _developer_tools(given: Message) -> Json:
    """A developer message's tools, in field order where they are well formed, else as they came."""
    tools = given.get("tools")
    if type(tools) is not list:
        return tools
    read = []
    for tool in tools:
        function = tool.get("function") if type(tool) is dict else None
        if type(function) is not dict or tool.get("type") != "function":
            return tools
        kinds = {"name": (str,), "description": (str,), "parameters": (dict,),
                 "strict": (bool, type(None))}
        if type(function.get("name")) is not str or any(
            type(function[key]) not in kind for key, kind in kinds.items() if key in function
        ):
            return tools
        ordered = {key: function[key] for key in kinds if key in function}
        ordered |= {key: value for key, value in function.items() if key not in ordered}
        read.append({"function": ordered, "type": "function",
                     **{key: value for key, value in tool.items()
                        if key not in ("function", "type")}})
    return read


# -- the developer role


def without_developer(messages: list[Message]) -> list[Message]:
    """Developer messages as system messages, then all of those merged into one at the front."""
    if not any(message["role"] == "developer" for message in messages):
        return messages
    read = [
        {**{k: v for k, v in message.items() if k != "tools"}, "role": "system"}
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
