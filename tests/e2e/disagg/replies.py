"""Replies of different engines held side by side: text, shape and status, without ids and times."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import httpx
from e2e.disagg import asks
from e2e.disagg.asks import Ask
from e2e.payload import Stream, blank, stream_of


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: httpx.Headers
    content: object  # of a reply in one piece, with ids and times blanked
    stream: Stream | None
    raw: bytes

    def differs(self, other: Reply) -> str:
        """What is not the same, or nothing."""
        if self.status != other.status:
            return f"status {other.status}, expected {self.status}: {other.raw[:300]!r}"
        if self.stream is not None and other.stream is not None:
            for name in ("text", "shapes"):
                mine, its = getattr(self.stream, name), getattr(other.stream, name)
                if mine != its:
                    return f"{name}: {its!r}, expected {mine!r}"
            if (self.stream.last == "[DONE]") is not (other.stream.last == "[DONE]"):
                return f"ends with {other.stream.last!r}, expected {self.stream.last!r}"
            return ""
        if self.content != other.content:
            return f"{other.content!r}, expected {self.content!r}"
        return ""


def ask(http: httpx.Client, base_url: str, asked: Ask) -> Reply:
    path, body = asked
    with http.stream("POST", base_url + path, json=body) as reply:
        # The engines' own settings are in it, and they differ.
        raw = re.sub(rb'("system_fingerprint": ?)"[^"]*"', rb'\1"*"', reply.read())
        if body.get("stream") and reply.status_code == 200:
            # Not splitlines: it takes U+2028 for the end of a line.
            stream = stream_of(raw.decode().split("\n")[:-1])
            return Reply(reply.status_code, reply.headers, None, stream, raw)
        return Reply(reply.status_code, reply.headers, comparable(json.loads(raw)), None, raw)


def comparable(reply: Any) -> object:
    """Without ids and times, and without what hangs on what each engine has cached."""
    found: Any = blank(reply)
    usage = found.get("usage") or {}
    for name in ("prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens"):
        usage.pop(name, None)
    return found


def differing(
    http: httpx.Client, base_url: str, run: str, expected: dict[str, Reply]
) -> dict[str, str]:
    """What is answered otherwise than expected, of the hundred requests of that run."""
    found = {}
    for name, asked in asks.hundred(run):
        got = ask(http, base_url, asked)
        # Stock replies have the field, empty; a streamed event has none.
        filled = re.search(rb'"kv_transfer_params": ?(?!null)', got.raw)
        different = "kv_transfer_params in it" if filled else expected[name].differs(got)
        if different:
            found[name] = different
    return found
