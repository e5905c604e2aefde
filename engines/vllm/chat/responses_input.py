"""POST /v1/responses as far as it reduces to a chat: text, function calls and their results.

Items become messages as in vLLM 0.32: reasoning, text and calls of the assistant that follow each
other are put into one message where it still has room, and only the first text of an item counts.
Unlike chats, special tokens are added when the text is tokenised.
"""

from __future__ import annotations

import json
from typing import Any

from engines.vllm.chat.chat import EFFORTS, ChatInput, render, thinking
from engines.vllm.chat.completion_input import cache_salt
from engines.vllm.chat.messages import Kind
from engines.vllm.chat.model import ModelPrompt
from engines.vllm.chat.outcome import (
    Json,
    Message,
    NotKnown,
    PromptInput,
    Texts,
    Why,
    odd,
    refused,
)

_OPEN = ("in_progress", "incomplete")
_STATES = (*_OPEN, "completed")
_PAYLOAD = "input"  # the one argument of the function a free-form tool is shown as


def read_responses(body: dict[str, Json], model: ModelPrompt, exact: bool) -> PromptInput:
    """Raises NotKnown, or InexactNumber."""
    for name in ("previous_response_id", "conversation"):
        if body.get(name) is not None:
            raise NotKnown(Why.STATE, f"{name}: the conversation lies in an engine")
    if body.get("previous_input_messages"):
        raise NotKnown(Why.OTHER, "previous_input_messages")
    if body.get("prompt") is not None:
        raise refused("prompt: not supported")
    given = body.get("input")
    messages: list[Message] = []
    instructions = body.get("instructions")
    if instructions is not None and type(instructions) is not str:
        raise refused("instructions: not a string")
    if instructions:
        messages.append({"role": "system", "content": instructions})
    resume = False
    if type(given) is str:
        messages.append({"role": "user", "content": given})
    elif type(given) is list:
        history: list[Message] = []
        for item in given:
            _add(item, history)
        messages += history
        resume = bool(given) and _is_open(given[-1])
    else:
        raise refused("input: neither a string nor a list of items")
    arguments = body.get("chat_template_kwargs")
    fields = {"add_generation_prompt": not resume, "continue_final_message": resume,
              **thinking(_effort(body), arguments)}
    chat = ChatInput(messages, _tools(body, model), arguments, fields, None, exact, Kind.MADE)
    return Texts((render(chat, model),), True, cache_salt(body))


def _effort(body: dict[str, Json]) -> str | None:
    reasoning = body.get("reasoning")
    if reasoning is None:
        return None
    effort = reasoning.get("effort") if type(reasoning) is dict else 0
    if effort is not None and (type(effort) is not str or effort not in EFFORTS):
        raise refused("reasoning: no effort there is")
    return effort


def _is_open(item: dict[str, Json]) -> bool:
    return item.get("type", "message") in ("message", "reasoning") and item.get("status") in _OPEN


# -- items


def _add(item: Json, messages: list[Message]) -> None:
    """Adds an item to the messages, or to the last one. Raises NotKnown."""
    if type(item) is not dict:
        raise odd("input: an item is not an object")
    kind = item.get("type", "message" if "role" in item else None)
    if item.get("status") not in (None, *_STATES):
        raise odd("input: no such status")
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind in ("function_call", "custom_tool_call"):
        call = _call(item, kind)
        if last is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            last.setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        _put(last, messages, "reasoning", _thought(item))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        name = None if item.get("call_id") is None else _string(item, "call_id")
        messages.append({"role": "tool", "content": _result(item), "tool_call_id": name})
    elif kind == "message":
        role, content = item.get("role"), item.get("content")
        if role == "assistant":
            if type(content) is str and "id" in item and "status" in item:
                raise odd("input: an assistant's finished message with a string as content")
            _put(last, messages, "content", _said(content))
        elif role in ("user", "system", "developer"):
            messages.append({"role": role, "content": _content(content)})
        else:
            raise odd("input: a message of no such role")
    else:
        raise NotKnown(Why.OTHER, f"input: items of type {kind!r} are not understood")


def _put(last: Message | None, messages: list[Message], name: str, text: str) -> None:
    if last is not None and last.get(name) is None:
        last[name] = text
    else:
        messages.append({"role": "assistant", name: text})


def _call(item: dict[str, Json], kind: str) -> Message:
    name = _string(item, "name")
    if kind == "custom_tool_call":
        arguments = json.dumps({_PAYLOAD: _string(item, "input")}, ensure_ascii=False)
    else:
        arguments = _string(item, "arguments")
        space = item.get("namespace")
        if space:
            name = f"{_string(item, 'namespace')}__{name}"
    return {"id": _string(item, "call_id"), "function": {"name": name, "arguments": arguments},
            "type": "function"}


def _thought(item: dict[str, Json]) -> str:
    if item.get("encrypted_content"):
        raise refused("input: encrypted content")
    for name, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = item.get(name)
        if type(parts) is not list:
            if name == "summary" or parts is not None:
                raise odd(f"input: reasoning needs a list as {name}")
            continue
        if not all(type(p) is dict and p.get("type") == kind and type(p.get("text")) is str
                   for p in parts):
            raise odd(f"input: {name} of reasoning is not text")
    parts = item.get("content") or item["summary"]
    text: str = parts[0]["text"] if parts else ""
    return text


def _said(content: Json) -> str:
    """Text of an assistant: of its parts, the first."""
    if type(content) is str:
        return content
    if type(content) is not list or not content:
        raise odd("input: an assistant that says nothing")
    kinds = {part.get("type") if type(part) is dict else None for part in content}
    if not (kinds == {"output_text"} or kinds == {"input_text"}) or not all(
        type(part.get("text")) is str for part in content
    ):
        raise NotKnown(Why.OTHER, "input: an assistant's parts are not text")
    text: str = content[0]["text"]
    return text


def _content(content: Json) -> Json:
    if type(content) is str:
        return content
    if type(content) is not list:
        raise odd("input: content is neither a string nor a list")
    for part in content:
        kind = part.get("type") if type(part) is dict else None
        if kind in ("input_image", "input_file", "input_audio"):
            raise NotKnown(Why.MEDIA, f"input: a part of type {kind!r}")
        if kind != "input_text" or type(part.get("text")) is not str:
            raise odd("input: a part is not input_text")
    return content


def _result(item: dict[str, Json]) -> Json:
    return _content(item.get("output"))


def _string(item: dict[str, Json], name: str) -> str:
    value = item.get(name)
    if type(value) is not str:
        raise odd(f"input: {name} is not a string")
    return value


# -- tools


def _tools(body: dict[str, Json], model: ModelPrompt) -> list[Any] | None:
    """Function tools in the form of a chat request; what the model never sees is left out."""
    tools = body.get("tools", [])
    if type(tools) is not list or not all(type(tool) is dict for tool in tools):
        raise refused("tools: not a list of objects")
    if not tools or (body.get("tool_choice") == "none" and model.options.exclude_tools):
        return None
    read = []
    for tool in tools:
        kind = tool.get("type")
        if kind == "namespace":
            raise NotKnown(Why.OTHER, "tools: namespaces are not understood")
        if kind == "custom":
            read.append({"function": {
                "name": tool.get("name"), "description": tool.get("description"),
                "parameters": {
                    "type": "object",
                    "properties": {_PAYLOAD: {
                        "type": "string",
                        "description": "The freeform text payload for this tool."}},
                    "required": [_PAYLOAD],
                    "additionalProperties": False,
                }}})
        elif kind == "function":
            read.append({"function": {name: tool[name] for name in
                                      ("name", "description", "parameters", "strict",
                                       "defer_loading") if name in tool}})
    return read
