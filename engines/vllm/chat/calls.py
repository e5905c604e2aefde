"""Tools within messages: what an assistant called, and what a developer declares."""

from __future__ import annotations

import json

from engines.vllm.chat.outcome import Json, Message, NotKnown, odd, refused

_TOOL_KINDS = {"name": (str,), "description": (str,), "parameters": (dict,),
               "strict": (bool, type(None))}


def tool_calls(given: Message, role: str) -> list[Message] | None:
    """Tool calls as a template takes them; None where there are none or they are no such list.

    Raises NotKnown for calls of an assistant that vLLM refuses.
    """
    calls = given.get("tool_calls")
    if calls is None:
        return None
    if type(calls) is not list:
        raise odd("messages: tool_calls is not a list")
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
    function = {"arguments": read_arguments(arguments), "name": name}
    if len(given) > 2:
        function |= {key: value for key, value in given.items() if key not in function}
    read: Message = {"id": call["id"], "function": function, "type": "function"}
    if len(call) > 3:
        read |= {key: value for key, value in call.items() if key not in read}
    return read


def read_arguments(text: str) -> Message:
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


def developer_tools(given: Message) -> Json:
    """A developer message's tools, in field order where they are well formed, else as they came."""
    tools = given.get("tools")
    if type(tools) is not list:
        return tools
    read = []
    for tool in tools:
        function = tool.get("function") if type(tool) is dict else None
        if type(function) is not dict or tool.get("type") != "function":
            return tools
        if type(function.get("name")) is not str or any(
            type(function[key]) not in kind for key, kind in _TOOL_KINDS.items() if key in function
        ):
            return tools
        ordered = {key: function[key] for key in _TOOL_KINDS if key in function}
        ordered |= {key: value for key, value in function.items() if key not in ordered}
        read.append({"function": ordered, "type": "function",
                     **{key: value for key, value in tool.items()
                        if key not in ("function", "type")}})
    return read


def tool_fields(tools: Json) -> int:
    """How many fields of well-formed tools the general form recognises."""
    return sum(2 + len(tool["function"].keys() & _TOOL_KINDS.keys()) for tool in tools or ())
