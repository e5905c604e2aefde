"""Replies of different engines held side by side: text, shape and status, without ids and times."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
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
            return self.stream.differs(other.stream)
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


_TOKENS = rb'"(?:prompt|input)_tokens": ?(\d+)'


@dataclass(slots=True)
class Hundred:
    """What became of a hundred requests through the gateway. `handed`: prompt tokens of those that
    two engines answered, by the receipt; `alone`: that one engine had to read.
    """

    differing: dict[str, str] = field(default_factory=dict)
    why: dict[str, int] = field(default_factory=dict)
    handed: int = 0
    alone: int = 0

    def add(self, name: str, asked: Ask, expected: Reply, got: Reply) -> None:
        # Stock replies have the field, empty; a streamed event has none.
        filled = re.search(rb'"kv_transfer_params": ?(?!null)', got.raw)
        different = "kv_transfer_params in it" if filled else expected.differs(got)
        if different:
            self.differing[name] = different
        # Messages count apart what they cache, and a stream may say nothing: then by the receipt.
        said = None if asked[0] == asks.MESSAGES else re.search(_TOKENS, expected.raw)
        tokens = int(said[1] if said else got.headers.get("x-kvgate-prompt-tokens", 0))
        if "x-kvgate-prefill" in got.headers:
            self.handed += tokens
        else:
            self.alone += tokens * int(str(asked[1].get("n", 1)))
        why = got.headers.get("x-kvgate-disaggregate", "not asked")
        self.why[why] = self.why.get(why, 0) + 1


def hundred(http: httpx.Client, base_url: str, run: str, expected: dict[str, Reply]) -> Hundred:
    """Asks them one after another."""
    found = Hundred()
    for name, asked in asks.hundred(run):
        found.add(name, asked, expected[name], ask(http, base_url, asked))
    return found
