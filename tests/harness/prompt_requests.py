"""Made-up requests for every endpoint that has a prompt; see chat_requests.py for how."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from harness.chat_requests import ARGUMENTS, ODD, SCHEMAS, Body, ChatMaker, Request


class Maker(ChatMaker):
    # -- responses

    def item(self) -> Any:
        kind = self.random.randrange(12)
        if kind < 4:
            item: Body = {"role": self.pick(("user", "user", "system", "developer", "assistant")),
                          "content": self.response_content()}
            self.maybe(item, "type", lambda: "message", 0.5)
        elif kind < 6:
            item = {"type": "message", "role": "assistant",
                    "content": [{"type": "output_text", "text": self.text()}
                                for _ in range(self.random.randrange(3))]}
        elif kind < 8:
            item = {"type": "function_call", "call_id": "c1", "name": "f",
                    "arguments": self.pick(ARGUMENTS)}
            self.maybe(item, "namespace", lambda: "space", 0.1)
        elif kind < 10:
            item = {"type": "function_call_output", "call_id": "c1",
                    "output": self.response_content()}
        else:
            item = {"type": "reasoning",
                    "summary": [{"type": "summary_text", "text": self.text()}] * self.pick((0, 1))}
            self.maybe(item, "content",
                       lambda: [{"type": "reasoning_text", "text": self.text()}], 0.5)
        self.maybe(item, "id", lambda: "item_1", 0.3)
        self.maybe(item, "status", lambda: self.pick(("completed", "in_progress")), 0.2)
        if self.chance(self._oddity):
            item[self.pick(list(item))] = self.pick(ODD)
        return item

    def response_content(self) -> Any:
        if self.chance(0.6):
            return self.text()
        return [{"type": "input_text", "text": self.text()}
                for _ in range(self.random.randrange(3))]

    def responses(self) -> Request:
        body: Body = {"input": self.text() if self.chance(0.2) else
                      [self.item() for _ in range(self.random.randrange(5))]}
        self.maybe(body, "instructions", self.text, 0.4)
        self.maybe(body, "tools", lambda: self.some(self.flat_tool, 3), 0.4)
        self.maybe(body, "reasoning", lambda: {"effort": self.pick(("none", "high", None))}, 0.2)
        self.maybe(body, "chat_template_kwargs", self.arguments, 0.2)
        self.maybe(body, "previous_response_id", lambda: "resp_1", 0.02)
        return "/v1/responses", self.written(body)

    def flat_tool(self) -> Any:
        if self.chance(0.1):
            return {"type": "custom", "name": "free", "description": "Free form."}
        if self.chance(0.1):
            return {"type": "web_search"}
        return {"type": "function", **self.function()}

    # -- messages

    def block(self, role: str) -> Any:
        kind = self.random.randrange(8)
        if kind == 0:
            return {"type": "thinking", "thinking": self.text(), "signature": "s"}
        if kind == 1:
            return {"type": "redacted_thinking", "data": "x"}
        if kind < 4 and role == "assistant":
            block: Body = {"type": "tool_use", "id": "toolu_1", "name": "f",
                           "input": self.pick(({}, {"a": 1.0, "b": [1e3, None]},
                                               {"big": 12345678901234567890123}, {"ü": "é"}))}
        elif kind < 4:
            block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": self.pick((
                self.text(), [{"type": "text", "text": self.text()}], None, [],
                [{"type": "text", "text": "a"}, {"type": "text", "text": self.text()}],
                [{"type": "tool_reference", "tool_name": "f"}]))}
        else:
            block = {"type": "text", "text": self.text()}
            self.maybe(block, "cache_control", lambda: {"type": "ephemeral"}, 0.3)
        if self.chance(self._oddity):
            block[self.pick(list(block))] = self.pick(ODD)
        return block

    def said(self) -> Body:
        role = self.pick(("user", "user", "assistant", "assistant", "system"))
        content = self.text() if self.chance(0.4) else [
            self.block(role) for _ in range(self.random.randrange(4))]
        return {"role": role, "content": content}

    def anthropic(self) -> Request:
        body: Body = {"model": "m", "max_tokens": 5000,
                      "messages": [self.said() for _ in range(self.pick((1, 1, 2, 3, 5)))]}
        self.maybe(body, "system", lambda: self.pick((
            self.text(), [{"type": "text", "text": self.text()} for _ in range(2)])), 0.5)
        self.maybe(body, "tools", lambda: self.some(self.named_tool, 3), 0.4)
        self.maybe(body, "thinking", lambda: self.pick((
            {"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024},
            {"type": "adaptive"})), 0.3)
        self.maybe(body, "output_config", lambda: {"effort": self.pick(("low", "max", None))}, 0.2)
        self.maybe(body, "chat_template_kwargs", self.arguments, 0.2)
        self.maybe(body, "tool_choice", lambda: {"type": self.pick(("auto", "none", "any"))}, 0.1)
        return "/v1/messages", self.written(body)

    def named_tool(self) -> Any:
        tool: Body = {"name": "f", "input_schema": self.pick(SCHEMAS[:4])}
        self.maybe(tool, "description", self.text, 0.7)
        self.maybe(tool, "strict", lambda: True, 0.1)
        return tool

    # -- pooling

    def pooling(self) -> Request:
        if self.chance(0.5):
            body: Body = json.loads(self.completion()[1])
            body["input"] = body.pop("prompt")
        else:
            body = json.loads(self.chat()[1])
            if self.chance(0.3):
                body["input"] = body.pop("messages")
        return self.pick(("/v1/embeddings", "/pooling", "/classify")), self.written(body)

    def scoring(self) -> Request:
        first, second = self.pick((("query", "documents"), ("queries", "documents"),
                                   ("text_1", "text_2"), ("data_1", "data_2")))
        body = {first: self.pick((self.text(), [self.text()])),
                second: self.pick((self.text(), [self.text(), self.text()], [], [5]))}
        return self.pick(("/score", "/rerank", "/v1/score")), self.written(body)


def requests(seed: int, count: int, oddity: float = 0.05) -> Iterator[Request]:
    """`count` requests: half of them chats, the rest of all other kinds."""
    maker = Maker(seed, oddity)
    kinds: tuple[Callable[[], Request], ...] = (
        *(maker.chat,) * 6, maker.tokenize, maker.completion, maker.responses, maker.responses,
        maker.anthropic, maker.anthropic, maker.pooling, maker.scoring,
    )
    for _ in range(count):
        yield maker.pick(kinds)()
