"""POST /v1/messages (Anthropic's form) as the chat vLLM 0.32 turns it into."""

from __future__ import annotations

import json
from typing import Any

from engines.vllm.chat.chat import EFFORTS, ChatInput, render, thinking
from engines.vllm.chat.completion_input import cache_salt
from engines.vllm.chat.messages import BILLING
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
from engines.vllm.chat.tools import check_numbers

_BLOCKS = ("text", "image", "tool_use", "tool_result", "tool_reference", "thinking",
           "redacted_thinking", "tool_addition", "tool_removal")
_DISABLED_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def read_messages(body: dict[str, Json], model: ModelPrompt, exact: bool) -> PromptInput:
    """Raises NotKnown, or InexactNumber."""
    given = body.get("messages")
    if type(given) is not list:
        raise refused("messages: not a list")
    merge = model.merges_system
    system = _system(body.get("system"))
    if merge:
        system += [text for m in given if _role(m) == "system" and (text := _system_text(m))]
    messages: list[Message] = []
    if system:
        messages.append({"role": "system", "content": "".join(system)})
    for message in given:
        if _role(message) == "system":
            text = _system_text(message)
            if text and not merge:
                messages.append({"role": "system", "content": text})
        else:
            _add(message, messages, exact)
    arguments = body.get("chat_template_kwargs")
    fields = {"add_generation_prompt": True, "continue_final_message": False,
              **thinking(_effort(body, model), arguments)}
    chat = ChatInput(messages, _tools(body, model), arguments, fields, None, exact)
    return Texts((render(chat, model),), False, cache_salt(body))


def disabled_effort(model: ModelPrompt) -> str:
    """The effort that stands for no thinking: `low` where the template does not heed `none`."""
    none = _probe(model, "none")
    if none is None or any(_probe(model, effort) == none for effort in _DISABLED_EFFORTS):
        return "low"
    return "none"


def _probe(model: ModelPrompt, effort: str) -> str | None:
    fields = {"add_generation_prompt": True, "continue_final_message": False,
              **thinking(effort, None)}
    try:
        return render(ChatInput([{"role": "user", "content": "Hi"}], None, None, fields), model)
    except NotKnown:
        return None


def _effort(body: dict[str, Json], model: ModelPrompt) -> str | None:
    thought = body.get("thinking")
    if thought is not None:
        if type(thought) is not dict:
            raise refused("thinking: not an object")
        if thought.get("type") == "disabled":
            return model.disabled_effort(disabled_effort)
    output = body.get("output_config")
    if output is None:
        return None
    effort = output.get("effort") if type(output) is dict else 0
    if effort is not None and (type(effort) is not str or effort not in EFFORTS):
        raise refused("output_config: no effort there is")
    return effort


# -- messages


def _role(message: Json) -> str:
    role = message.get("role") if type(message) is dict else None
    if role not in ("user", "assistant", "system"):
        raise refused("messages: no such role")
    if type(message.get("content")) not in (str, list):
        raise refused("messages: content is neither a string nor a list")
    known: str = role
    return known


def _blocks(content: list[Json]) -> list[dict[str, Json]]:
    for block in content:
        if type(block) is not dict or block.get("type") not in _BLOCKS:
            raise refused("messages: no such block")
        if block["type"] in ("tool_addition", "tool_removal"):
            raise NotKnown(Why.OTHER, "messages: changes of tools are not understood")
        for name in ("text", "thinking", "id", "name", "tool_use_id"):
            if type(block.get(name)) not in (str, type(None)):
                raise refused(f"messages: {name} of a block is not a string")
    return content


def _system(system: Json) -> list[str]:
    if not system:
        return []
    if type(system) is str:
        return [system]
    if type(system) is not list:
        raise refused("system: neither a string nor a list")
    return _kept_texts(system)


def _kept_texts(content: list[Json]) -> list[str]:
    """Texts of text blocks, but for a line of one client that changes with each request."""
    return [
        block["text"] for block in _blocks(content)
        if block["type"] == "text" and block.get("text") and not block["text"].startswith(BILLING)
    ]


def _system_text(message: dict[str, Json]) -> str:
    content = message["content"]
    if type(content) is str:
        return "" if content.startswith(BILLING) else content
    return "".join(_kept_texts(content))


def _add(given: dict[str, Json], messages: list[Message], exact: bool) -> None:
    role, content = given["role"], given["content"]
    if type(content) is str:
        messages.append({"role": role, "content": content})
        return
    parts: list[Message] = []
    calls: list[Message] = []
    thoughts: list[str] = []
    for block in _blocks(content):
        kind = block["type"]
        if kind == "text":
            if block.get("text"):
                parts.append({"type": "text", "text": block["text"]})
        elif kind == "image":
            if block.get("source"):
                raise NotKnown(Why.MEDIA, "messages: an image")
        elif kind == "thinking":
            if block.get("thinking") is not None:
                thoughts.append(block["thinking"])
        elif kind == "tool_use":
            calls.append(_call(block, exact))
        elif kind == "tool_result":
            if role == "user":
                _add_result(block, messages)
            else:
                held = block.get("content")
                if not exact:
                    check_numbers(held)
                parts.append({"type": "text", "text": f"Tool result: {held if held else ''}"})
    message: Message = {"role": role}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if parts:
        message["content"] = parts[0]["text"] if len(parts) == 1 else parts
    if role != "user" or "content" in message:
        messages.append(message)


def _call(block: dict[str, Json], exact: bool) -> Message:
    given = block.get("input")
    if type(given) not in (dict, type(None)):
        raise refused("messages: input of a tool is not an object")
    if not block.get("id"):
        raise odd("messages: a tool_use without an id gets one by the engine's clock")
    if not exact:
        check_numbers(given)
    return {"id": block["id"], "type": "function",
            "function": {"name": block.get("name") or "", "arguments": json.dumps(given or {})}}


def _add_result(block: dict[str, Json], messages: list[Message]) -> None:
    content = block.get("content")
    texts: list[str] = []
    references: list[dict[str, Any]] = []
    if type(content) is list:
        for item in content:
            if type(item) is not dict:
                raise refused("messages: a tool result is not text")
            kind = item.get("type")
            if kind == "text":
                if type(item.get("text", "")) is not str:
                    raise refused("messages: a tool result is not text")
                texts.append(item.get("text", ""))
            elif kind == "image":
                raise NotKnown(Why.MEDIA, "messages: an image")
            elif kind == "tool_reference" and (item.get("tool_name") or item.get("name")):
                references.append({"type": "tool_reference",
                                   "name": item.get("tool_name") or item.get("name")})
    elif type(content) is str:
        texts.append(content)
    elif content is not None:
        raise refused("messages: a tool result is neither a string nor a list")
    name = block.get("tool_use_id") or ""
    messages.append({"role": "tool", "tool_call_id": name, "content": "\n".join(texts)})
    if references:
        messages.append({"role": "tool", "tool_call_id": name, "content": references})


# -- tools


def _tools(body: dict[str, Json], model: ModelPrompt) -> list[Any] | None:
    """Tools in the form of a chat request: an empty list stays one."""
    tools = body.get("tools")
    if tools is None:
        return None
    if type(tools) is not list or not all(type(tool) is dict for tool in tools):
        raise refused("tools: not a list of objects")
    choice = body.get("tool_choice")
    if type(choice) is dict and choice.get("type") == "none" and model.options.exclude_tools:
        return None
    read = []
    for tool in tools:
        schema = tool.get("input_schema")
        if type(schema) is not dict:
            raise refused("tools: input_schema is not an object")
        if "type" not in schema:
            schema = {**schema, "type": "object"}
        read.append({"function": {"name": tool.get("name"),
                                  "description": tool.get("description"), "parameters": schema,
                                  "strict": tool.get("strict"),
                                  "defer_loading": tool.get("defer_loading")}})
    return read
