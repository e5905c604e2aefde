"""A chat request to its prompt text: which template, which arguments, which messages.

The order of precedence is vLLM's: the request's `chat_template_kwargs`, over them the request's own
fields, under both what the engine was started with. A value of null, or "auto", does not override.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.vllm.chat.messages import Kind, conversation, without_developer
from engines.vllm.chat.model import ModelPrompt
from engines.vllm.chat.outcome import Json, NotKnown, Why, odd, refused
from engines.vllm.chat.template import Call
from engines.vllm.chat.tools import check_numbers

EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})


@dataclass(frozen=True, slots=True)
class ChatInput:
    """What of a request of any chat-like endpoint the prompt depends on, before normalisation."""

    messages: Json
    tools: Json = None  # as in a chat request
    arguments: Json = None  # chat_template_kwargs
    # Arguments by the request's own fields: they override, except with null.
    fields: Mapping[str, Any] | None = None
    template: str | None = None  # brought by the request
    exact: bool = True  # numbers are exact: not parsed by orjson
    kind: Kind = Kind.CHAT


def render(chat: ChatInput, model: ModelPrompt) -> str:
    """The prompt's text. Raises NotKnown, or InexactNumber."""
    if model.elsewhere:
        raise NotKnown(Why.ELSEWHERE, f"{model.elsewhere} renders chats in the engine")
    arguments = _arguments(chat, model)
    tools = arguments.pop("tools", None)
    template = model.template(tools is not None, chat.template)
    form = model.options.content_format or template.content_format
    messages = conversation(chat.messages, form, chat.kind, chat.exact)
    if not template.knows_developer:
        messages = without_developer(messages)
    accepted = template.accepted(arguments)
    documents = accepted.pop("documents", None)
    if type(documents) not in (list, type(None)):
        raise odd("documents: not a list")
    call = Call(
        messages,
        tools,
        documents,
        accepted.pop("add_generation_prompt", False),
        accepted.pop("continue_final_message", False),
        accepted,
    )
    return template.render(call)


def _arguments(chat: ChatInput, model: ModelPrompt) -> dict[str, Any]:
    """All arguments of the template call, tools among them."""
    defaults = dict(model.options.template_kwargs)
    if chat.tools is not None:
        defaults["tools"] = model.tool_sets.dump(chat.tools, chat.exact)
    given = chat.arguments
    if given is None:
        given = {}
    elif type(given) is not dict:
        raise refused("chat_template_kwargs: not an object")
    elif given:
        _check_given(given, chat.exact)
    defaults |= {name: value for name, value in given.items() if not _unset(value)}
    defaults |= {name: v for name, v in (chat.fields or {}).items() if not _unset(v)}
    return defaults


def _check_given(given: dict[str, Json], exact: bool) -> None:
    if not exact:
        check_numbers(given)
    if given.get("chat_template") is not None:
        raise NotKnown(Why.TEMPLATE, "chat_template_kwargs bring a template")
    if given.get("tokenize"):
        raise odd("chat_template_kwargs: tokenize")
    tools = given.get("tools")
    if tools is not None and not (
        type(tools) is list and all(type(tool) is dict for tool in tools)
    ):
        raise odd("chat_template_kwargs: tools are not a list of objects")


def _unset(value: Any) -> bool:
    return value is None or (type(value) is str and value == "auto")


# -- /v1/chat/completions


def read_chat(body: dict[str, Json], model: ModelPrompt, exact: bool) -> ChatInput:
    """Raises NotKnown."""
    tools = body.get("tools")
    if tools is not None:
        if type(tools) is not list or not tools:
            raise refused("tools: not a list of at least one")
        if body.get("tool_choice") == "none" and model.options.exclude_tools:
            tools = None
    resume = flag(body, "continue_final_message", False)
    effort = body.get("reasoning_effort")
    if effort is not None and (type(effort) is not str or effort not in EFFORTS):
        raise refused("reasoning_effort: not one of those there are")
    fields = {
        "add_generation_prompt": flag(body, "add_generation_prompt", True),
        "continue_final_message": resume,
        "documents": _documents(body),
        **thinking(effort, body.get("chat_template_kwargs")),
    }
    return ChatInput(body.get("messages"), tools, body.get("chat_template_kwargs"), fields,
                     own_template(body, model), exact)


def thinking(effort: str | None, arguments: Json) -> dict[str, Any]:
    """Template arguments of an effort: asking for one turns thinking on, `none` off."""
    if effort is None:
        return {}
    if type(arguments) is dict and "enable_thinking" in arguments:
        return {"reasoning_effort": effort}
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def own_template(body: dict[str, Json], model: ModelPrompt) -> str | None:
    """The template a request brings. Raises NotKnown unless such are trusted."""
    source = body.get("chat_template")
    if source is None:
        return None
    if type(source) is not str:
        raise refused("chat_template: not a string")
    if not model.options.request_templates:
        raise NotKnown(Why.TEMPLATE, "the request brings a template of its own")
    return source or None


def flag(body: dict[str, Json], name: str, default: bool) -> bool:
    """A boolean field. Other values may be coerced by the engine: they are not guessed."""
    value = body.get(name, default)
    if type(value) is not bool:
        raise odd(f"{name}: not a boolean")
    return value


def _documents(body: dict[str, Json]) -> Json:
    documents = body.get("documents")
    if documents is None:
        return None
    if type(documents) is not list or not all(
        type(document) is dict and all(type(value) is str for value in document.values())
        for document in documents
    ):
        raise refused("documents: not a list of objects of strings")
    return documents
