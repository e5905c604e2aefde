"""What a model's prompts depend on: its templates, its special tokens, the engine's options.

One `ModelPrompt` serves all requests of a model; it is safe for threads and holds bounded caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from engines.vllm.chat.content_format import ContentFormat
from engines.vllm.chat.environment import Clock, needs_leading_system
from engines.vllm.chat.outcome import NotKnown, Why
from engines.vllm.chat.template import FastTemplate, Template
from engines.vllm.chat.tools import ToolSets


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of `vllm serve` that a prompt's text depends on; defaults are vLLM 0.32's."""

    # --chat-template: its text, or the name of one of the model's
    chat_template: str | None = None
    # --chat-template-content-format; None = auto
    content_format: ContentFormat | None = None
    # --default-chat-template-kwargs
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    # --exclude-tools-when-tool-choice-none
    exclude_tools: bool = False
    # --trust-request-chat-template, and this side is willing to run a stranger's template too
    request_templates: bool = False


@dataclass(frozen=True, slots=True)
class Sources:
    """Chat templates as a model's files give them."""

    named: Mapping[str, str] = field(default_factory=dict)  # the tokenizer's, by name
    processor: str | None = None  # of a multimodal processor: rules where no tools are given

    @staticmethod
    def of(source: str) -> Sources:
        return Sources({"default": source})


class ModelPrompt:
    """Raises NotKnown for a template that does not compile."""

    def __init__(
        self,
        sources: Sources,
        special_tokens: Mapping[str, str] | None = None,
        options: EngineOptions | None = None,
        *,
        elsewhere: str = "",
        lower_case: bool = False,
        pairs: bool = False,
        now: Clock = datetime.now,
    ) -> None:
        self.options = options or EngineOptions()
        self.elsewhere = elsewhere  # what renders chats instead of a template; "" = nothing
        self.lower_case = lower_case  # text of pooling requests is lowered
        self.pairs = pairs  # scores are those of a classifier over pairs
        self.tool_sets = ToolSets()
        self._special_tokens = dict(special_tokens or {})
        self._now = now
        self._disabled_effort: str | None = None
        self._named = dict(sources.named)
        self._compiled: dict[str, Template] = {}
        given = self.options.chat_template
        if given is not None:
            plain: str | None = self._named.get(given, given)
            with_tools = plain
        else:
            default = self._named.get("default")
            plain = sources.processor or default
            with_tools = self._named.get("tool_use", default)
        self._plain = self._compile(plain)
        self._with_tools = self._compile(with_tools)

    def _compile(self, source: str | None) -> Template | None:
        if source is None:
            return None
        found = self._compiled.get(source)
        if found is None:
            found = Template(source, self.tool_sets, self._now, self._special_tokens)
            self._compiled[source] = found
        return found

    def template(self, tools: bool, source: str | None = None) -> Template:
        """The template for a request with or without tools. Raises NotKnown where there is none.

        `source` is one that the request brings: compiled for it alone, and not kept.
        """
        if source is not None:
            source = self._named.get(source, source)
            return Template(source, self.tool_sets, self._now, self._special_tokens)
        found = self._with_tools if tools else self._plain
        if found is None:
            raise NotKnown(Why.TEMPLATE, "the model has no chat template")
        return found

    def prove(self, make: Callable[[str], FastTemplate]) -> int:
        """Lets another renderer, made from the source, take over where it is equal: how many."""
        proved = 0
        for template in self._compiled.values():
            try:
                proved += template.prove(make(template.source))
            except ValueError:
                continue
        return proved

    @cached_property
    def merges_system(self) -> bool:
        """Whether /v1/messages moves later system messages to the front, as vLLM probes it."""
        return any(
            template is None or needs_leading_system(template.source)
            for template in (self._plain, self._with_tools)
        )

    def disabled_effort(self, probe: Callable[[ModelPrompt], str]) -> str:
        """What `probe` says stands for no thinking: asked once."""
        if self._disabled_effort is None:
            self._disabled_effort = probe(self)
        return self._disabled_effort

    def templates(self) -> tuple[Template, ...]:
        return tuple(self._compiled.values())
