"""What a stand-in engine of the bench holds in its cache, and says of it as vLLM does.

It publishes KV events on ZeroMQ, with a replay socket: first the blocks of every document of
`prompts` that is this engine's, then, once a step, those that the requests it got would have filled,
and that the oldest of them are gone. The blocks of a document carry its real token ids, so that a
proxy can find them; those of what comes but once carry any. It also tokenises, as an engine does
when asked. Nothing here costs the proxies anything but what they read.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import prompts

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from engines.sim.cache import Cleared, Event, Removed, Stored  # noqa: E402
from engines.sim.events import Publisher  # noqa: E402
from engines.sim.model_folder import Folder  # noqa: E402
from engines.sim.settings import EventSettings  # noqa: E402

BLOCK = 16  # tokens
STEP_S = 0.02  # between two batches of events
ONCE_MAX = 20_000  # blocks of requests held beside the documents: 320 000 tokens
BUFFER = 100_000  # batches that can be replayed: more than a run makes
_ids = random.Random(1)


def document_ids(model: Folder) -> list[list[int]]:
    """Token ids of each document up to the last whole block that its requests share."""
    found = []
    for number in range(prompts.SHARED):
        system = {"role": "system", "content": json.loads(f'"{prompts.document(number)}"')}
        a, b = (
            model.chat({"messages": [system, {"role": "user", "content": text}]})
            for text in ("Question 1: A", "Question 2: B")
        )
        same = next(at for at, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1])
        found.append(a[: same // BLOCK * BLOCK])
    return found


@dataclass(frozen=True, slots=True)
class Library:
    """What all engines have in common."""

    model: Folder
    documents: list[list[int]]
    engines: int
    asked: set[int] = field(default_factory=set)  # documents that came in a request

    @classmethod
    def of(cls, folder: str, engines: int) -> Library:
        model = Folder(folder)
        return cls(model, document_ids(model), engines)


class Held:
    """Of engine `place`. `request` is called for each one that it gets."""

    def __init__(self, library: Library, place: int) -> None:
        self.library = library
        self.documents = library.documents
        self.place = place
        settings = EventSettings(
            enable_kv_cache_events=True,
            endpoint="tcp://*:0",
            replay_endpoint="tcp://*:0",
            buffer_steps=BUFFER,
        )
        self.publisher = Publisher(settings, 0, BLOCK)
        self.once: deque[bytes] = deque()
        self.chains: dict[int, tuple[bytes, ...]] = {}
        self.events: list[Event] = []
        self.reset()

    def reset(self) -> None:
        """Holds its documents and nothing else; counts from 0."""
        self.once.clear()
        self.chains.clear()
        self.events.append(Cleared())
        for number in range(self.place, len(self.documents), self.library.engines):
            self.fill(number)
        self.library.asked.clear()
        self.right = self.wrong = self.again = self.tokens = 0

    def fill(self, number: int) -> None:
        ids = self.documents[number]
        hashes = tuple(_ids.randbytes(32) for _ in range(len(ids) // BLOCK))
        self.chains[number] = hashes
        self.events.append(Stored(hashes, None, tuple(ids), (None,) * len(hashes)))

    def request(self, number: int) -> None:
        """The blocks that prompt `number` fills here."""
        document = prompts.shared(number)
        tail = prompts.PIECE
        parent = None
        if document < 0:
            tail += prompts.PIECE * prompts.PIECES
        else:
            if document in self.chains:
                self.right += 1
            else:
                self.wrong += 1
                self.fill(document)
            self.again += document in self.library.asked
            self.library.asked.add(document)
            self.tokens += len(self.documents[document])
            parent = self.chains[document][-1]
        count = tail // 3 // BLOCK  # about 3 bytes a token
        hashes = tuple(_ids.randbytes(32) for _ in range(count))
        ids = (number & 0x7FFF, *range(count * BLOCK - 1))
        self.events.append(Stored(hashes, parent, ids, (None,) * count))
        self.once.extend(hashes)
        while len(self.once) > ONCE_MAX:
            self.events.append(Removed(self.once.popleft()))

    async def publish(self) -> None:
        while True:
            if self.events:
                events, self.events = self.events, []
                self.publisher.publish(events)
            await asyncio.sleep(STEP_S)

    def tokenize(self, body: dict[str, Any]) -> list[int]:
        model = self.library.model
        return model.chat(body) if "messages" in body else model.text(body["prompt"])

    def answer(self, head: bytes, body: bytes) -> dict[str, Any] | None:
        """What belongs to the cache; None = another endpoint."""
        if head.startswith(b"GET /kv_event_sources "):
            return {"0": self.publisher.config()}
        if head.startswith(b"POST /v1/chat/completions/render "):
            return {"request_id": "render", "token_ids": self.tokenize(json.loads(body))}
        if head.startswith(b"POST /tokenize "):
            ids = self.tokenize(json.loads(body))
            return {"count": len(ids), "max_model_len": 32768, "tokens": ids, "token_strs": None}
        if head.startswith(b"POST /bench/reset "):
            self.reset()
            return {}
        if head.startswith(b"GET /bench/held "):
            names = ("right", "wrong", "again", "tokens")
            return {name: getattr(self, name) for name in names}
        return None
