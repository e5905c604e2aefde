"""One chat template, compiled: what it wants, and a conversation rendered with it.

Rendering is that of `apply_chat_template` of transformers 5, with the text as its result. Jinja2 is
the reference; another renderer may stand in only where `prove` found it equal on the built-in
conversations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import orjson
from jinja2 import Template as Compiled
from jinja2 import TemplateError, nodes

from engines.vllm.chat.content_format import ContentFormat, content_format
from engines.vllm.chat.conversations import CONVERSATIONS
from engines.vllm.chat.environment import ChatEnvironment, Clock, variables
from engines.vllm.chat.outcome import Message, NotKnown, Why, refused
from engines.vllm.chat.tools import Tool, ToolSets

# Parameters of transformers' `apply_chat_template`: they pass vLLM's filter of template arguments.
PARAMETERS = frozenset({
    "self", "conversation", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors",
    "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
})  # fmt: skip
# Those that never reach the template.
_CONSUMED = frozenset({
    "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs",
})  # fmt: skip
# Names that vLLM or transformers would be given twice: a TypeError there.
_CLASHING = frozenset({"self", "conversation", "conversations", "messages", "model_config",
                       "tokenizer"})

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "

# What a template can raise: itself, or Python under it.
_FAULTS = (TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, NameError,
           RuntimeError, TypeError, ValueError)


class FastTemplate(Protocol):
    """Another renderer of the same template: context as JSON to text.

    Raises ValueError where the template does, and wherever it is not sure to write what Jinja2
    writes; the reference then renders.
    """

    def render(self, context_json: bytes) -> str: ...


@dataclass(frozen=True, slots=True)
class Call:
    """One rendering. `arguments` holds what else the template reads; `special_tokens` not."""

    messages: Sequence[Message]
    tools: Sequence[Tool] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    arguments: Mapping[str, Any] | None = None


class Template:
    """Raises NotKnown for a source Jinja2 does not take."""

    def __init__(self, source: str, tool_sets: ToolSets, now: Clock,
                 special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens)
        self._environment = ChatEnvironment(tool_sets, now)
        try:
            self._tree: nodes.Template = self._environment.parse(source)
            self._compiled: Compiled = self._environment.from_string(source)
        except _FAULTS as exc:
            raise NotKnown(Why.TEMPLATE, f"the chat template does not compile: {exc}") from exc
        self.knows_developer = '"developer"' in source or "'developer'" in source
        self.fast: FastTemplate | None = None

    @cached_property
    def content_format(self) -> ContentFormat:
        return content_format(self._tree)

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names vLLM lets through from `chat_template_kwargs`, its parameters aside."""
        return variables(self.source)

    @property
    def reads_clock(self) -> bool:
        """Whether the text may depend on the day: the engine's clock and time zone count."""
        return "strftime_now" in self.variables

    def accepted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a request's template arguments that vLLM passes on. Raises NotKnown."""
        if not _CLASHING.isdisjoint(arguments):
            for name in _CLASHING & arguments.keys():
                if name not in ("conversations", "messages") or name in self.variables:
                    raise refused(f"chat_template_kwargs: {name} is taken")
        if arguments.get("return_assistant_tokens_mask"):
            raise refused("chat_template_kwargs: return_assistant_tokens_mask needs tokens")
        takes = self.variables
        return {
            name: value for name, value in arguments.items()
            if (name in takes or name in PARAMETERS) and name not in _CONSUMED
        }

    def render(self, call: Call) -> str:
        """Raises NotKnown where transformers or the template itself would raise."""
        messages = call.messages
        if not messages:
            raise refused("messages: an empty conversation")
        final: Final | None = None
        if call.continue_final_message:
            if call.add_generation_prompt:
                raise refused("continue_final_message and add_generation_prompt exclude each other")
            final = _open_end(messages, self.source)
            messages = final.messages
        if call.documents is not None and not all(type(d) is dict for d in call.documents):
            raise refused("documents: not a list of objects")
        context = {**self.special_tokens, **(call.arguments or {})}
        context |= {"messages": messages, "tools": call.tools, "documents": call.documents,
                    "add_generation_prompt": call.add_generation_prompt}
        text = self._render(context)
        return text if final is None else final.cut(text)

    def _render(self, context: dict[str, Any]) -> str:
        if self.fast is not None:
            try:
                return self.fast.render(orjson.dumps(context))
            except (ValueError, TypeError):
                pass  # the reference decides whether this is an error
        try:
            return self._compiled.render(context)
        except _FAULTS as exc:
            raise refused(f"the chat template raises: {exc}") from exc

    def prove(self, fast: FastTemplate) -> bool:
        """Takes `fast` as renderer if it gives the same text for every built-in conversation, or
        leaves it to the reference, but not all of them.
        """
        self.fast = None
        alike = 0
        for call in CONVERSATIONS:
            context = {**self.special_tokens, "messages": call["messages"], "tools": call["tools"],
                       "documents": None, "add_generation_prompt": call["add_generation_prompt"],
                       **call["arguments"]}
            try:
                expected: str | None = self._render(context)
            except NotKnown:
                expected = None
            try:
                got = fast.render(orjson.dumps(context))
            except ValueError:
                continue
            if got != expected:
                return False
            alike += 1
        if not alike:
            return False
        self.fast = fast
        return True


@dataclass(frozen=True, slots=True)
class Final:
    """A conversation whose last message is marked, so that the text can be cut after it."""

    messages: list[Message]
    said: str

    def cut(self, text: str) -> str:
        if self.said.strip() not in text or _TAG.strip() not in text:
            raise refused("continue_final_message: the template does not show the final message")
        at = text.rindex(_TAG.strip())
        if text[at : at + len(_TAG)] == _TAG:
            return text[:at]
        return text[:at].rstrip()


def _open_end(messages: Sequence[Message], source: str) -> Final:
    """Raises NotKnown where there is no text to go on from."""
    last = dict(messages[-1])
    content = last.get("content")
    if content is None or "content" not in source:
        raise refused("continue_final_message: the final message has no content")
    if isinstance(content, list):
        for at in range(len(content) - 1, -1, -1):
            if "text" in content[at] and type(content[at]["text"]) is str:
                said: str = content[at]["text"]
                marked = {**content[at], "text": said + _TAG}
                last["content"] = [*content[:at], marked, *content[at + 1 :]]
                break
        else:
            raise refused("continue_final_message: the final message has no text")
    else:
        said = content
        last["content"] = said + _TAG
    return Final([*messages[:-1], last], said)
