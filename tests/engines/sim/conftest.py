"""Engines in threads of the test process: they start in milliseconds and end with the test.

Also a subscriber of KV events, which keeps its own book of what an engine has cached.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from engines.sim.process import SimEngine

WAIT_S = 5.0
CONFIG = {"enable_kv_cache_events": True, "endpoint": "tcp://*:0",
          "replay_endpoint": "tcp://*:0", "topic": "kv"}
CLIENT = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))  # one TLS set-up


@pytest.fixture
def sim() -> Iterator[Callable[..., SimEngine]]:
    """Starts engines with the given arguments; they stop when the test ends."""
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(SimEngine(*args, thread=True))


@pytest.fixture
def publishing(sim: Callable[..., SimEngine]) -> Callable[..., SimEngine]:
    """The same with KV events on, at ports of the system's choice."""
    def start(*args: object, **config: Any) -> SimEngine:
        value = json.dumps({**CONFIG, **config})
        return sim("m", "--tokens", 4, *args, "--kv-events-config", value)
    return start


@pytest.fixture(scope="module")
def engine() -> Iterator[SimEngine]:
    """One engine for tests that leave nothing behind."""
    with SimEngine("m", "--tokens", 6, "--enable-prompt-tokens-details", thread=True) as it:
        yield it


class Subscriber:
    """Reads live batches, asks for replays, keeps the multiset of cached hashes."""

    def __init__(self, engine: SimEngine, rank: int = 0) -> None:
        self.source = engine.call("GET", "/kv_event_sources")[1][str(rank)]
        self._context = zmq.Context()
        self.live = self._context.socket(zmq.SUB)
        self.live.setsockopt(zmq.SUBSCRIBE, b"kv")
        self.live.connect(self.source["endpoint"])
        self.asker = self._context.socket(zmq.DEALER)
        self.asker.connect(self.source["replay_endpoint"])
        self.copies: Counter[int] = Counter()

    def close(self) -> None:
        self._context.destroy(0)

    def recv(self, sock: zmq.Socket[bytes]) -> list[bytes]:
        assert sock.poll(WAIT_S * 1000), "nothing came"
        return sock.recv_multipart()

    def batch(self) -> tuple[int, list[dict[str, Any]]]:
        topic, seq, payload = self.recv(self.live)
        assert topic == b"kv" and len(seq) == 8
        when, events, _rank = msgspec.msgpack.decode(payload)
        assert abs(when - time.time()) < 60
        return int.from_bytes(seq, "big"), events

    def replay(self, start: int) -> list[tuple[int, list[dict[str, Any]]]]:
        self.asker.send_multipart([b"", start.to_bytes(8, "big")])
        out = []
        while True:
            empty, topic, seq, payload = self.recv(self.asker)
            assert empty == b""
            if seq == b"\xff" * 8:
                assert (topic, payload) == (b"", b"")
                return out
            out.append((int.from_bytes(seq, "big"), msgspec.msgpack.decode(payload)[1]))

    def apply(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            if isinstance(event, list):
                continue  # the form of older versions: the book is not kept
            if event["type"] == "BlockStored":
                self.copies.update(event["block_hashes"])
            elif event["type"] == "BlockRemoved":
                self.copies.subtract(event["block_hashes"])
            else:
                assert event == {"type": "AllBlocksCleared"}
                self.copies.clear()

    def cached(self) -> dict[str, int]:
        return {str(h): n for h, n in self.copies.items() if n}


def complete(engine: SimEngine, prompt: str, rank: int = 0, session: str = "",
             **more: Any) -> None:
    """One short completion at a rank."""
    headers = {"x-data-parallel-rank": str(rank)}
    if session:
        headers["x-session-id"] = session
    body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 2, **more}
    reply = CLIENT.post(engine.url + "/v1/completions", json=body, headers=headers)
    assert reply.status_code == 200, reply.text


@pytest.fixture
def ask() -> Callable[..., None]:
    return complete


@contextlib.contextmanager
def subscribed(engine: SimEngine, rank: int = 0) -> Iterator[Subscriber]:
    """Subscribed for certain: a batch has come through."""
    it = Subscriber(engine, rank)
    try:
        deadline = time.monotonic() + WAIT_S
        while True:
            complete(engine, f"probe {time.monotonic()} " * 6, rank)
            if it.live.poll(100):
                break
            assert time.monotonic() < deadline, "never subscribed"
        while it.live.poll(0):
            it.batch()
        for _seq, events in it.replay(0):
            it.apply(events)
        yield it
    finally:
        it.close()


@pytest.fixture
def subscriber() -> Callable[..., contextlib.AbstractContextManager[Subscriber]]:
    return subscribed
