"""What `record` writes: when requests came, how long they were, and which blocks they share.

Invariants: no text and no token id gets into a file; hashes are keyed with the site's secret, so
that without it nobody can try what a block, a client or a session was. A request costs the event
loop one tuple; blocks are hashed, and lines made, in the thread that writes them. The form is that
of docs/workload.md.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any

import orjson

from gateway.logs import Sink, Writer

if TYPE_CHECKING:
    from gateway.context import Context
    from native._core import Prompt

LINE_BYTES = 200  # of a row that waits, about, its prompt's ids apart
ID_BYTES = 4
NAME_BYTES = 4  # of the hash of a client or session
HASH_BYTES = 8  # of a block's
# The clock of requests says nothing of the day.
EPOCH_S = time.time() - monotonic()

Text = Callable[["Context"], str]
# (arrival by the clock of requests, tokens in, tokens out, prompt, client, session)
Row = tuple[float, int, int, "Prompt | None", str, str]


class Keyed:
    """The hashes of a site."""

    __slots__ = ("_block", "_client", "_session")

    def __init__(self, secret: str) -> None:
        key = blake2b(secret.encode(), digest_size=32).digest()
        self._block = blake2b(digest_size=HASH_BYTES, key=key, person=b"block")
        self._client = blake2b(digest_size=NAME_BYTES, key=key, person=b"client")
        self._session = blake2b(digest_size=NAME_BYTES, key=key, person=b"session")

    def blocks(self, prompt: Prompt, block: int) -> list[int]:
        """Of each full block, for its whole prefix."""
        hashes = prompt.hashes(block)
        found = array("Q")
        for at in range(0, len(hashes), HASH_BYTES):
            keyed = self._block.copy()
            keyed.update(hashes[at : at + HASH_BYTES])
            found.frombytes(keyed.digest())
        return found.tolist()

    def client(self, text: str) -> str:
        return self._name(self._client, text)

    def session(self, text: str) -> str:
        return self._name(self._session, text)

    @staticmethod
    def _name(kind: Any, text: str) -> str:
        keyed = kind.copy()
        keyed.update(text.encode())
        found: str = keyed.hexdigest()
        return found


class Rows:
    """What waits for the writer's thread."""

    def __init__(self, rows: list[tuple[Row, TraceLog]], held: int) -> None:
        self._rows, self._held = rows, held

    def __len__(self) -> int:
        return self._held

    def render(self) -> bytes:
        return b"".join(log.line(row) for row, log in self._rows)


class TraceSink(Sink):
    """The file of one or several `record`s."""

    __slots__ = ("_held", "_rows", "block")
    name = "record"

    def __init__(self, path: str, writer: Writer) -> None:
        self._rows: list[tuple[Row, TraceLog]] = []
        self._held = 0
        self.block = 0
        super().__init__(path, writer)

    def put(self, row: Row, log: TraceLog) -> None:
        prompt = row[3]
        self._rows.append((row, log))
        self._held += LINE_BYTES + (ID_BYTES * prompt.tokens if prompt is not None else 0)
        self.filled()

    @property
    def size(self) -> int:
        return self._held

    def take(self) -> tuple[int, Rows]:
        rows, held = self._rows, self._held
        self._rows, self._held = [], 0
        return len(rows), Rows(rows, held)

    def open(self) -> int:
        fd = super().open()
        self._name(fd)
        return fd

    def begin(self, block: int) -> None:
        """Tells it the size of its blocks, in tokens."""
        if not self.block:
            self.block = block
            self._name(self.fd)

    def _name(self, fd: int) -> None:
        """A new file begins with a line that names its form. Two workers may both write one:
        readers pass over the second."""
        if self.block and os.fstat(fd).st_size == 0:
            os.write(fd, b'{"kvgate_trace":1,"block":%d}\n' % self.block)


class TraceLog:
    """One `record`."""

    __slots__ = ("_block", "_client", "_keyed", "_session", "sink")

    def __init__(self, sink: TraceSink, keyed: Keyed, block: int, who: tuple[Text, Text]) -> None:
        """`who`: the texts of the client and of the session."""
        self.sink, self._keyed, self._block = sink, keyed, block
        self._client, self._session = who

    def write(self, ctx: Context) -> None:
        """Notes a request that has ended, if its tokens are known."""
        leg, kv = ctx.leg, ctx.kv
        if ctx.request.method != b"POST":
            return
        prompt = kv.prompt if kv is not None and kv.alone else None
        if prompt is not None and not prompt.exact:
            prompt = None
        tokens, output = 0, 0
        if leg is not None and leg.relayed:
            tokens = max(0, leg.prompt_tokens)
            output = max(0, leg.completion_tokens if leg.completion_tokens >= 0 else leg.chunks)
        if prompt is not None:
            tokens = tokens or prompt.tokens
            if prompt.tokens != tokens:
                prompt = None  # the engine made another prompt of it
        if tokens:
            client, session = self._client(ctx), self._session(ctx)
            row = (ctx.request.t0, tokens, output, prompt, client, session)
            self.sink.put(row, self)

    def line(self, row: Row) -> bytes:
        at_s, tokens, output, prompt, client, session = row
        found: dict[str, object] = {
            "timestamp": round((EPOCH_S + at_s) * 1e3),
            "input_length": tokens,
            "output_length": output,
        }
        if prompt is not None:
            found["hash_ids"] = self._keyed.blocks(prompt, self._block)
        if client:
            found["client"] = self._keyed.client(client)
        if session:
            found["session"] = self._keyed.session(session)
        return orjson.dumps(found) + b"\n"
