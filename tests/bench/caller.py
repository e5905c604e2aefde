"""Sends the calls of a slice to a gateway when they are due, and notes what became of each.

Every call has a connection of its own. Times are of the client's clock: TTFT from the moment a call
was due, so that a late client or gateway is not flattered; `late_s` says how late it was sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast

import httptools
from scaled import Call

LIMIT_S = 300.0  # of one answer
RECEIPT = b"x-kvgate-"


@dataclass(slots=True)
class Outcome:
    """Of one call. Times in real seconds since it was due; tokens; `cached`: as the engine says,
    `matched`: as the gateway expected, -1 = it did not say.
    """

    call: Call
    late_s: float = 0.0
    ttft_s: float = -1.0
    last_s: float = -1.0
    tokens: int = 0
    cached: int = -1
    matched: int = -1
    engine: str = ""
    trust: str = ""
    tier: str = ""
    error: str = ""

    @property
    def tpot_s(self) -> float:
        """Between tokens, in the mean; 0.0 for an answer of one."""
        return (self.last_s - self.ttft_s) / (self.tokens - 1) if self.tokens > 1 else 0.0

    def good(self, ttft_s: float, tpot_s: float) -> bool:
        return not self.error and self.ttft_s <= ttft_s and self.tpot_s <= tpot_s


def request(call: Call, model: str) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "prompt": call.ids(),
            "max_tokens": call.output,
            "min_tokens": call.output,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        separators=(",", ":"),
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"X-Prefix: {call.head()}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Reply(asyncio.Protocol):
    """One call and its answer; `done` gets its outcome."""

    def __init__(self, outcome: Outcome, sent: bytes, due: float) -> None:
        self.outcome, self.sent, self.due = outcome, sent, due
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parser = httptools.HttpResponseParser(self)
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.transport.write(self.sent)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.end(f"no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(f"connection lost {exc or ''}")

    def end(self, error: str = "") -> None:
        if not self.done.done():
            self.outcome.error = error
            self.done.set_result(None)
            self.transport.abort()

    # ---- of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        word = name.lower().removeprefix(RECEIPT)
        if word == b"matched-tokens":
            self.outcome.matched = int(value)
        elif word == b"engine":
            self.outcome.engine = value.decode()
        elif word == b"trust":
            self.outcome.trust = value.decode()
        elif word == b"tier":
            self.outcome.tier = value.decode()

    def on_body(self, data: bytes) -> None:
        self.buffer += data
        if self.parser.get_status_code() != 200:
            return
        *events, self.buffer = self.buffer.split(b"\n\n")
        for event in events:
            if event.startswith(b"data: {"):
                self.event(event[6:])

    def event(self, data: bytes) -> None:
        now = monotonic() - self.due
        outcome = self.outcome
        if b'"choices":[]' in data:
            found: dict[str, Any] = json.loads(data)["usage"]
            outcome.cached = found["prompt_tokens_details"]["cached_tokens"]
            outcome.tokens = found["completion_tokens"]
            return
        if outcome.ttft_s < 0:
            outcome.ttft_s = now
        outcome.last_s = now

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        if status != 200:
            self.end(f"{status} {self.buffer[:200]!r}")
        elif self.outcome.cached < 0 or self.outcome.ttft_s < 0:
            self.end("a stream without tokens or usage")
        else:
            self.end()


async def ask(port: int, call: Call, model: str, due: float) -> Outcome:
    """One call, now. Never raises for what becomes of it."""
    outcome = Outcome(call, late_s=monotonic() - due)
    loop = asyncio.get_running_loop()
    sent = request(call, model)
    try:
        _, reply = await loop.create_connection(
            lambda: Reply(outcome, sent, due), "127.0.0.1", port
        )
    except OSError as error:
        outcome.error = str(error)
        return outcome
    await asyncio.wait({reply.done}, timeout=LIMIT_S)
    reply.end(f"no end in {LIMIT_S:g} s")
    return outcome


async def at_their_time(
    port: int, calls: list[Call], model: str, pace: float
) -> list[Outcome]:
    """A second of the trace takes `pace` real ones."""
    start, first = monotonic() + 0.5, calls[0].at_s
    running: list[asyncio.Task[Outcome]] = []
    for call in calls:
        due = start + (call.at_s - first) * pace
        if (left := due - monotonic()) > 0:
            await asyncio.sleep(left)
        running.append(asyncio.create_task(ask(port, call, model, due)))
    return await asyncio.gather(*running)


async def one_by_one(port: int, calls: Iterable[Call], model: str) -> list[Outcome]:
    return [await ask(port, call, model, monotonic()) for call in calls]
