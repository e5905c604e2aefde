"""What is asked of an endpoint before a run: its model, and how it counts the words of a chat."""

from __future__ import annotations

from typing import Any

import httpx

from gateway.load.client import SAMPLE, Target
from gateway.load.prompts import Asking, Scale, Writer

TIMEOUT_S = 60.0
WORDS = (64, 512)  # of the probes


class CannotAsk(Exception):
    """What went wrong, and a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def model_of(target: Target) -> str:
    """The first model that it serves. Raises CannotAsk."""
    found = _ask(target, "GET", "/v1/models")
    try:
        return str(found["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise CannotAsk(f"{target.url} names no model", "--model NAME") from None


def scale_of(target: Target, asking: Asking) -> Scale:
    """By two requests for one token. An engine that counts nothing is taken to count words."""
    writer = Writer(asking, 1, "probe")
    counts = []
    for words in WORDS:
        found = _ask(target, "POST", "/v1/chat/completions", writer.probe(words))
        tokens = (found.get("usage") or {}).get("prompt_tokens")
        if not tokens:
            return Scale()
        counts.append((words, tokens))
    return Scale.of(counts[0], counts[1])


def _ask(target: Target, method: str, path: str, body: bytes | None = None) -> Any:
    headers = [*target.headers, ("Content-Type", "application/json")]
    try:
        reply = httpx.request(
            method, target.url + path, content=body, headers=headers, timeout=TIMEOUT_S
        )
        if not reply.is_success:
            text = reply.text[:SAMPLE]
            raise CannotAsk(f"{target.url}{path} answered {reply.status_code}: {text}")
        return reply.json()
    except httpx.HTTPError as error:
        raise CannotAsk(f"cannot reach {target.url}: {error}", "is it running?") from None
    except ValueError:
        raise CannotAsk(f"{target.url}{path} answered no JSON") from None
