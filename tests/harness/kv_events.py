"""KV events of simulated engines, and a book of them that is kept the plain way."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
from harness import waiting

from engines.sim.process import SimEngine
from gateway.kv.events import Key, Subscriber
from gateway.kv.feed import View, Wanted
from gateway.kv.sources import Source
from gateway.kv.tally import Tally
from native._core import Prompt

EVENTS = {
    "enable_kv_cache_events": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0",
    "topic": "kv",
}  # fmt: skip
CLIENT = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))


def engine(*args: object, thread: bool = True, **config: Any) -> SimEngine:
    """A publishing engine, not started."""
    events = json.dumps({**EVENTS, **config})
    more = () if thread else ("--port", 0)
    return SimEngine("m", "--tokens", 4, *more, *args, "--kv-events-config", events, thread=thread)


def ask(one: SimEngine, prompt: str, rank: int = 0, **more: Any) -> dict[str, Any]:
    """One short completion; its usage."""
    body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 2, **more}
    headers = {"x-data-parallel-rank": str(rank)}
    reply = CLIENT.post(one.url + "/v1/completions", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    usage: dict[str, Any] = reply.json()["usage"]
    return usage


def fill(one: SimEngine, count: int, word: str = "water", rank: int = 0) -> None:
    """So many batches, each of a prompt of its own."""
    for n in range(count):
        ask(one, f"{word} {n} " * 20, rank)


def prompt(one: SimEngine, text: str) -> Prompt:
    """A text as the engine sees it."""
    told = one.call("POST", "/tokenize", {"model": "m", "prompt": text})[1]
    return Prompt.of_list(told["tokens"])


def cached(one: SimEngine, rank: int = 0) -> dict[str, int]:
    """What the engine itself says it holds: block hash -> copies."""
    held: dict[str, int] = one.call("GET", "/sim/cached")[1][rank]
    return held


def source(one: SimEngine, rank: int = 0) -> Source:
    told = one.call("GET", "/kv_event_sources")[1][str(rank)]
    return Source(told["endpoint"], told["replay_endpoint"] or "", told["topic"])


@dataclass
class Applied:
    cleared: int = 0
    malformed: dict[str, int] = field(default_factory=dict)


class Book:
    """An index that counts copies of block hashes per slot. Never raises on content."""

    def __init__(self) -> None:
        self.copies: dict[int, Counter[str]] = {}
        self.clears: Counter[int] = Counter()
        self.removed: list[int] = []
        self.batches: Counter[int] = Counter()

    def apply(self, slot: int, payload: bytes) -> Applied:
        try:
            _, events, _ = msgspec.msgpack.decode(payload)
        except msgspec.DecodeError:
            return Applied(malformed={"framing": 1})
        self.batches[slot] += 1
        done = Applied()
        copies = self.copies.setdefault(slot, Counter())
        for event in events:
            if event["type"] == "BlockStored":
                copies.update(map(str, event["block_hashes"]))
            elif event["type"] == "BlockRemoved":
                copies.subtract(map(str, event["block_hashes"]))
            else:
                copies.clear()
                done.cleared += 1
        return done

    def clear(self, slot: int) -> None:
        self.copies[slot] = Counter()
        self.clears[slot] += 1

    def remove_engine(self, slot: int) -> None:
        self.removed.append(slot)
        self.copies.pop(slot, None)

    def held(self, slot: int) -> dict[str, int]:
        return {name: count for name, count in self.copies.get(slot, Counter()).items() if count}


class Followed:
    """A subscriber with its book; engines are followed under their addresses."""

    def __init__(self) -> None:
        self.book = Book()
        self.subscriber = Subscriber(self.book)
        self.wanted: dict[Key, Wanted] = {}

    def follow(self, one: SimEngine, slot: int = 0, rank: int = 0, **changed: str) -> Key:
        told = source(one, rank)
        parts = {"endpoint": told.endpoint, "replay": told.replay, "topic": told.topic, **changed}
        key = ("main", f"{one.address}#{rank}")
        self.wanted[key] = Wanted(slot, Source(**parts))
        self.subscriber.follow(self.wanted)
        return key

    def view(self, key: Key) -> View:
        found = self.subscriber.view(key)
        assert found is not None
        return found

    def tally(self, key: Key) -> Tally:
        return self.view(key).tally

    def wait(self, key: Key, state: str, word: str = "", timeout_s: float = 10.0) -> View:
        """Until its standing is this, and its reason has this word."""
        last: list[View | None] = [None]

        def there() -> View | None:
            last[0] = view = self.subscriber.view(key)
            if view is None or view.standing.state != state or word not in view.standing.reason:
                return None
            return view

        try:
            found = waiting.until(there, f"{key} to be {state} ({word})", timeout_s)
        except waiting.NeverHappened as error:
            raise waiting.NeverHappened(f"{error}: {last[0]}") from None
        assert found is not None
        return found

    def wait_equal(self, key: Key, one: SimEngine, rank: int = 0, timeout_s: float = 10.0) -> None:
        """Until the book has what the engine has."""
        slot = self.wanted[key].slot
        waiting.until(
            lambda: self.book.held(slot) == cached(one, rank) or None,
            "the book to be what the engine holds",
            timeout_s,
        )

    def close(self) -> None:
        self.subscriber.close()
