"""Made-up chats, tools and completions: ordinary ones, odd ones, broken ones.

One seed gives the same requests for ever. Fields are drawn so that each choice of a reader is met:
kinds of content, parts, tool calls, tools, template arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Body = dict[str, Any]
Request = tuple[str, bytes]

TEXTS = (
    "Hi", "", " spaces \n", "Grüße 🙂 שלום", "{{ x }} {% if y %}", "<|im_end|></s>[INST]", "a\r\nb",
    "x-anthropic-billing-header: cch=1;\nReal", "x-anthropic-billing-header: cch=1;", "\u2028\x00é",
    "<think>\nhm\n</think>\n\nyes", "1, 2, ", "None", "auto",
)
ARGUMENTS = (
    "", "{}", "[]", "{", "42", '"x"', "null", '{"a": 1}', '{"a": 1.50, "b": [1e3, -0.0, 1e-7]}',
    '{"n": 12345678901234567890, "m": 123456789012345678901234567890}', '{"x": NaN}',
    '{"a": 1, "a": 2}', '{"ü": "\\u00fc\\ud83d\\ude42"}', '{"deep": {"list": [{"k": null}]}}',
    ' {"s": true} ', '\ufeff{"a": 1}',
)
SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {}},
    {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": 'é "q" <b>&', "enum": ["a", "b"]},
        "n": {"type": ["integer", "null"], "minimum": 0.5, "maximum": 1e25, "default": None}}},
    {"properties": {"big": {"const": 18446744073709551616}}},
    {},
    None,
)
TAKEN = ("messages", "conversation", "padding", "tokenize", "max_length", "return_dict",
         "chat_template")
ODD: tuple[Any, ...] = (None, 5, 1.5, True, [], {}, "x", ["x"], {"a": 1})


class ChatMaker:
    def __init__(self, seed: int, oddity: float = 0.05) -> None:
        self.random = Random(seed)
        self._oddity = oddity

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, options: tuple[Any, ...] | list[Any]) -> Any:
        return self.random.choice(options)

    def text(self) -> str:
        return self.pick(TEXTS)

    def some(self, make: Callable[[], Any], below: int) -> list[Any]:
        return [make() for _ in range(self.random.randrange(below))]

    def maybe(self, body: Body, name: str, make: Callable[[], Any], share: float) -> None:
        """Sets a field sometimes; seldom to something that does not belong there."""
        if self.chance(share):
            body[name] = self.pick(ODD) if self.chance(self._oddity) else make()

    # -- chat

    def part(self) -> Any:
        kind = self.random.randrange(50)
        if kind == 0:
            return self.text()
        if kind == 1:
            return {"type": "refusal", "refusal": self.text()}
        if kind == 2:
            return {"type": "thinking", "thinking": self.text(),
                    **({"closed": True} if self.chance(0.3) else {})}
        if kind == 3:
            return {"type": "tool_reference", "name": "f"}
        if kind == 4:
            return {"type": "input_text", "text": self.text()}
        if kind == 5:
            return {"type": "text", "text": None}
        if kind == 6:
            return {"type": self.pick(("audio", "output_text", "file")), "text": self.text()}
        if kind == 7:
            return self.pick(({"text": "no type"}, {"type": "text"}, {}, {"type": 5, "text": "x"}))
        part: Body = {"type": "text", "text": self.text()}
        self.maybe(part, "cache_control", lambda: {"type": "ephemeral"}, 0.15)
        self.maybe(part, "prompt_cache_breakpoint", lambda: {"mode": "explicit"}, 0.05)
        self.maybe(part, "uuid", lambda: "u", 0.02)
        self.maybe(part, "name", lambda: "n", 0.02)
        return part

    def content(self) -> Any:
        kind = self.random.randrange(10)
        if kind < 6:
            return self.text()
        if kind < 9:
            return self.some(self.part, 4)
        return self.pick((None, None, [{"type": "text", "text": "only"}]))

    def call(self, at: int) -> Body:
        function = {"name": self.pick(("f", "g")), "arguments": self.pick(ARGUMENTS)}
        call: Body = {"id": f"call{at:05d}", "type": "function", "function": function}
        if self.chance(0.1):
            call = {"type": "function", "index": at, **call}
            call["function"]["extra"] = 1
        if self.chance(self._oddity):
            call[self.pick(("id", "type", "function"))] = self.pick(ODD)
        return call

    def message(self) -> Body:
        role = self.pick(("system", "user", "user", "user", "assistant", "assistant", "assistant",
                          "tool", "tool", "developer", "function", "critic"))
        message: Body = {"role": role, "content": self.content()}
        if self.chance(0.04):
            del message["content"]
        self.maybe(message, "name", lambda: "alice", 0.1 if role != "function" else 0.9)
        if role == "assistant":
            self.maybe(message, "tool_calls",
                       lambda: [self.call(n) for n in range(self.random.randrange(4))], 0.5)
            self.maybe(message, "reasoning", self.text, 0.2)
            self.maybe(message, "reasoning_content", self.text, 0.2)
            for name in ("refusal", "audio", "function_call", "annotations"):
                self.maybe(message, name, lambda: None, 0.15)
        if role == "tool":
            self.maybe(message, "tool_call_id", lambda: "call00000", 0.9)
        self.maybe(message, "tools", lambda: [self.tool()], 0.3 if role == "developer" else 0.02)
        self.maybe(message, "task", self.text, 0.03)
        self.maybe(message, "cache_control", lambda: {"type": "ephemeral"}, 0.05)
        if self.chance(0.005):
            return self.pick(ODD)
        return message

    def messages(self) -> list[Any]:
        return [self.message() for _ in range(self.pick((0, *(1, 1, 2, 3, 5) * 6)))]

    def function(self) -> Body:
        function: Body = {"name": self.pick(("f", "get_weather"))}
        self.maybe(function, "description", self.text, 0.7)
        self.maybe(function, "parameters", lambda: self.pick(SCHEMAS), 0.8)
        self.maybe(function, "strict", lambda: self.pick((True, False, None)), 0.2)
        self.maybe(function, "unknown", lambda: 1, 0.1)
        self.maybe(function, "defer_loading", lambda: True, 0.05)
        return function

    def tool(self) -> Any:
        tool: Body = {"type": "function", "function": self.function()}
        if self.chance(0.2):
            tool = dict(reversed(tool.items()))
        self.maybe(tool, "defer_loading", lambda: self.pick((True, False)), 0.05)
        self.maybe(tool, "extra", lambda: {"a": 1}, 0.05)
        return tool

    def arguments(self) -> Body:
        given: Body = {}
        self.maybe(given, "enable_thinking", lambda: self.pick((True, False, None)), 0.6)
        self.maybe(given, "thinking", lambda: True, 0.3)
        self.maybe(given, "reasoning_effort", lambda: self.pick(("low", "auto")), 0.2)
        self.maybe(given, "date_string", lambda: "1 Jan 2026", 0.3)
        self.maybe(given, "bos_token", lambda: "<BOS>", 0.1)
        self.maybe(given, "not_a_variable", lambda: 1, 0.2)
        self.maybe(given, "add_generation_prompt", lambda: False, 0.1)
        self.maybe(given, "tools", lambda: [{"name": "bare"}], 0.1)
        self.maybe(given, "documents", lambda: [{"title": "t", "text": "x"}], 0.1)
        self.maybe(given, self.pick(TAKEN), lambda: self.pick(ODD), 0.1)
        return given

    def chat(self) -> Request:
        body: Body = {"messages": self.messages()}
        self.maybe(body, "tools", lambda: self.some(self.tool, 3) or [self.tool()], 0.4)
        if self.chance(0.5 if "tools" in body else 0.02):
            body["tool_choice"] = self.pick(("none", "auto", None))
        self.maybe(body, "add_generation_prompt", lambda: self.pick((True, False)), 0.3)
        self.maybe(body, "continue_final_message", lambda: self.pick((True, False)), 0.2)
        if body.get("continue_final_message") is True and self.chance(0.8):
            body["add_generation_prompt"] = False
        self.maybe(body, "chat_template_kwargs", self.arguments, 0.3)
        self.maybe(body, "reasoning_effort", lambda: self.pick(("none", "low", "high", "max")), 0.2)
        self.maybe(body, "documents", lambda: [{"title": "t", "text": self.text()}], 0.1)
        self.maybe(body, "add_special_tokens", lambda: self.pick((True, False)), 0.1)
        self.maybe(body, "cache_salt", lambda: "salt", 0.05)
        self.maybe(body, "chat_template", lambda: "{{ messages }}", 0.02)
        self.maybe(body, "unknown", lambda: 1, 0.1)
        return "/v1/chat/completions", self.written(body)

    def tokenize(self) -> Request:
        if self.chance(0.2):
            body: Body = {"prompt": self.text()}
        else:
            body = json.loads(self.chat()[1])
            body.pop("reasoning_effort", None)
        return "/tokenize", self.written(body)

    def completion(self) -> Request:
        ids = [self.random.randrange(100) for _ in range(self.random.randrange(5))]
        good = (self.text(), [self.text(), self.text()], ids, [ids, ids], [self.text()])
        bad = ([], None, [1, "a"], [[1], "a"], [-1], [True], [1.0], {}, 5)
        body: Body = {"prompt": self.pick(bad if self.chance(0.3) else good)}
        self.maybe(body, "add_special_tokens", lambda: self.pick((True, False)), 0.3)
        self.maybe(body, "suffix", lambda: "end", 0.03)
        self.maybe(body, "cache_salt", lambda: "salt", 0.05)
        return "/v1/completions", self.written(body)

    def written(self, body: Body) -> bytes:
        return json.dumps(body, ensure_ascii=self.chance(0.5)).encode()
