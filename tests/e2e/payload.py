"""Replies made comparable: what differs between two runs of the same request is blanked.

Ids and times differ by nature. How many tokens lie in one streamed event depends on timing, so a
stream is compared by its text and by the kinds of events it is made of, in order. Whether mere text
comes in an event of its own depends on timing too: the end may hold all of it, and the beginning of
a call to a tool what follows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

FICKLE = frozenset({
    "id", "created", "created_at", "completed_at", "item_id", "response_id", "sequence_number",
})  # fmt: skip
# Headers of one hop, or of the moment, or that the gateway adds on purpose.
OWN_HEADERS = frozenset({
    "date", "server", "connection", "keep-alive", "transfer-encoding", "content-length",
    "x-request-id", "x-engine",
})  # fmt: skip


@dataclass(slots=True)
class Stream:
    """What one event stream held. Choices take turns as they like, so each is kept by itself."""

    text: dict[int, str] = field(default_factory=dict)  # by choice
    shapes: dict[int, list[str]] = field(default_factory=dict)  # by choice; -1: events of none
    plain: dict[int, set[str]] = field(default_factory=dict)  # by choice: events of mere text
    ends: dict[int, str] = field(default_factory=dict)  # by choice: why it ended
    ids: set[str] = field(default_factory=set)
    last: str = ""

    def add(self, name: str, data: str) -> None:
        self.last = data
        if data == "[DONE]":
            self._shape(-1, data)
            return
        event = json.loads(data)
        if "id" in event:
            self.ids.add(event["id"])
        for index, text in cut_text(event):
            self.text[index] = self.text.get(index, "") + text
        choices = event.get("choices")
        index = choices[0]["index"] if choices else -1
        choice = choices[0] if choices else {}
        reason, stop = choice.pop("finish_reason", None), choice.pop("stop_reason", None)
        if reason is not None:
            self.ends[index] = f"{reason} {stop}"
        for part in _parts(choice) if choices else (None,):
            piece = event if part is None else {**event, "choices": [part]}
            shape = f"{name} {json.dumps(blank(piece), sort_keys=True)}"
            if part is not None and _is_mere_text(part.get("delta")):
                self.plain.setdefault(index, set()).add(shape)
            else:
                self._shape(index, shape)

    def differs(self, other: Stream) -> str:
        """What is not the same in the other one, or nothing."""
        for name in ("text", "ends", "shapes"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                return f"{name}: {its!r}, expected {mine!r}"
        for index in self.plain.keys() & other.plain.keys():
            if self.plain[index] != other.plain[index]:
                return f"plain: {other.plain[index]!r}, expected {self.plain[index]!r}"
        if (self.last == "[DONE]") is not (other.last == "[DONE]"):
            return f"ends with {other.last!r}, expected {self.last!r}"
        return ""

    def _shape(self, index: int, shape: str) -> None:
        """Kinds of events in order; equal neighbours are one."""
        shapes = self.shapes.setdefault(index, [])
        if not shapes or shapes[-1] != shape:
            shapes.append(shape)


def _parts(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """A choice as if each piece of a call had come in an event of its own."""
    delta = choice.get("delta") or {}
    calls = delta.get("tool_calls") or []
    return [{**choice, "delta": {**delta, "tool_calls": [call]}} for call in calls] or [choice]


def _is_mere_text(delta: dict[str, Any] | None) -> bool:
    """Whether nothing but text, or arguments of a call that has begun, was in it. It is cut out."""
    if not delta:
        return delta is not None
    calls = delta.get("tool_calls")
    if delta.keys() - {"content"} != {"tool_calls"} or delta.get("content") or not calls:
        return False
    return all("id" not in call and "name" not in call.get("function", {}) for call in calls)


def stream_of(lines: list[str]) -> Stream:
    """Reads the lines of a server-sent event stream."""
    stream = Stream()
    name = ""
    for line in lines:
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            stream.add(name, line[5:].strip())
        elif not line:
            name = ""
        else:
            raise AssertionError(f"not a line of an event stream: {line!r}")
    return stream


def cut_text(event: dict[str, object]) -> list[tuple[int, str]]:
    """Takes the generated text out of one event (chat, completions, messages, responses).

    Returns (choice, text) pairs.
    """
    found = []
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        index = choice["index"]
        if isinstance(choice.get("text"), str):
            found.append((index, choice["text"]))
            choice["text"] = ""
        delta = choice.get("delta", {})
        if isinstance(delta.get("content"), str) and "role" not in delta:
            # Taken out whole: a last event has a content or none, as the timing had it.
            found.append((index, delta.pop("content")))
        for call in delta.get("tool_calls") or []:
            arguments = call.get("function", {}).get("arguments")
            if isinstance(arguments, str):  # a busy engine sends the first of them with the name
                found.append((index, arguments))
                call["function"]["arguments"] = ""
    delta = event.get("delta")
    if isinstance(delta, str):
        found.append((0, delta))
        event["delta"] = ""
    elif isinstance(delta, dict) and isinstance(delta.get("text"), str):
        found.append((0, delta["text"]))
        delta["text"] = ""
    return found


def blank(value: object) -> object:
    if isinstance(value, dict):
        return {
            key: "*" if key in FICKLE and inner is not None else blank(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [blank(inner) for inner in value]
    return value


def headers_of(reply: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name not in OWN_HEADERS}
