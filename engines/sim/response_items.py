"""Items of the Responses interface: what comes in, what goes out, and the event stream of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from .chat import Shape, split_reasoning
from .errors import invalid
from .jobs import Job
from .params import Body
from .sequence import Sequence as Generation
from .sse import event

_OPEN, _CLOSE = '{"text": "', '"}'


def to_messages(value: Any) -> list[Body]:
    """Chat messages of a request's `input`. Raises ApiError."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise invalid("input", "Input should be a valid string or list")
    out: list[Body] = []
    for item in value:
        if not isinstance(item, dict):
            raise invalid("input", "Input items should be valid dictionaries")
        kind = item.get("type", "message")
        if kind == "message":
            out.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            out.append({"role": "assistant", "content": None, "tool_calls": [
                {"id": item.get("call_id"), "type": "function", "function": {
                    "name": item.get("name"), "arguments": item.get("arguments")}}]})
        elif kind == "function_call_output":
            out.append({"role": "tool", "content": str(item.get("output", ""))})
    return out


def _name(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(8)}"


def _text_part(text: str) -> Body:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def message_item(name: str, text: str) -> Body:
    return {"id": name, "content": [_text_part(text)], "role": "assistant",
            "status": "completed", "type": "message", "phase": None}


def reasoning_item(name: str, text: str) -> Body:
    return {"id": name, "summary": [], "type": "reasoning",
            "content": [{"text": text, "type": "reasoning_text"}], "encrypted_content": None,
            "status": None}


def call_item(name: str, call: str, tool: str, arguments: str) -> Body:
    return {"arguments": arguments, "call_id": call, "name": tool, "type": "function_call",
            "id": name, "status": "completed"}


def output_items(seq: Generation, form: Shape) -> list[Body]:
    reasoning, said = split_reasoning(seq, form.reasoning)
    items = [reasoning_item(_name("rs"), reasoning)] if reasoning else []
    if form.tool is not None:
        items.append(call_item(_name("fc"), _name("call"), form.tool, _OPEN + said + _CLOSE))
    else:
        items.append(message_item(_name("msg"), said))
    return items


class ResponseWriter:
    """Events of one streamed response; `finish` fills in the response object at the end."""

    def __init__(self, job: Job, answer: Body, form: Shape, finish: Callable[[], Body]) -> None:
        self._reply, self._form, self._finish = job.reply, form, finish
        self._sequence = 0
        self._kind: str | None = None
        self._index = -1
        self._item = self._call = ""
        self._said = ""
        self._items: list[Body] = []
        for name in ("response.created", "response.in_progress"):
            self._send(name, {"response": dict(answer)})

    def _send(self, name: str, value: Body) -> None:
        value = {**value, "sequence_number": self._sequence, "type": name}
        self._reply.chunk(event(name, dict(sorted(value.items()))))  # the models' order
        self._sequence += 1

    def token(self, seq: Generation, delta: str, token: int) -> None:
        if seq.error is not None:
            self._send("error", {"code": "500", "message": seq.error, "param": None})
        elif seq.output_len <= self._form.reasoning:
            self._delta("reasoning", delta)
        elif self._form.tool is not None:
            first = self._kind != "function_call"
            closing = _CLOSE if seq.finish_reason == "stop" else ""
            self._delta("function_call", (_OPEN if first else "") + delta + closing)
        else:
            self._delta("message", delta)

    def _at(self) -> Body:
        place: Body = {"item_id": self._item, "output_index": self._index}
        if self._kind != "function_call":
            place["content_index"] = 0
        return place

    def _delta(self, kind: str, text: str) -> None:
        if not text:
            return
        if self._kind != kind:
            self._close()
            self._start(kind)
        self._said += text
        if kind == "message":
            self._send("response.output_text.delta", {**self._at(), "delta": text, "logprobs": []})
        elif kind == "reasoning":
            self._send("response.reasoning_text.delta", {**self._at(), "delta": text})
        else:
            self._send("response.function_call_arguments.delta", {**self._at(), "delta": text})

    def _start(self, kind: str) -> None:
        self._kind, self._said = kind, ""
        self._index += 1
        self._item = _name({"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind])
        if kind == "function_call":
            self._call = _name("call")
            item = call_item(self._item, self._call, str(self._form.tool), "")
            item["status"] = "in_progress"
        elif kind == "message":
            item = {"id": self._item, "content": [], "role": "assistant",
                    "status": "in_progress", "type": "message", "phase": None}
        else:
            item = {"id": self._item, "summary": [], "type": "reasoning", "content": None,
                    "encrypted_content": None, "status": "in_progress"}
        self._send("response.output_item.added", {"item": item, "output_index": self._index})
        if kind == "message":
            self._send("response.content_part.added", {**self._at(), "part": {
                **_text_part(""), "logprobs": []}})
        elif kind == "reasoning":
            self._send("response.content_part.added", {**self._at(), "part": {
                "text": "", "type": "reasoning_text"}})

    def _close(self) -> None:
        text, kind = self._said, self._kind
        if kind is None:
            return
        if kind == "message":
            item = message_item(self._item, text)
            self._send("response.output_text.done", {**self._at(), "text": text, "logprobs": []})
            self._send("response.content_part.done", {**self._at(), "part": _text_part(text)})
        elif kind == "reasoning":
            item = reasoning_item(self._item, text)
            self._send("response.reasoning_text.done", {**self._at(), "text": text})
            self._send("response.content_part.done", {**self._at(), "part": {
                "text": text, "type": "reasoning_text"}})
        else:
            item = call_item(self._item, self._call, str(self._form.tool), text)
            self._send("response.function_call_arguments.done",
                       {**self._at(), "arguments": text, "name": self._form.tool})
        self._send("response.output_item.done", {"item": item, "output_index": self._index})
        self._items.append(item)
        self._kind = None

    def done(self, job: Job) -> None:
        self._close()
        if job.sequences[0].error is None:
            answer = self._finish()
            answer["output"] = self._items or answer["output"]
            self._send("response.completed", {"response": answer})
        self._reply.end()
