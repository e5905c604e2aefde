"""A very cheap stand-in for two vLLM servers: canned replies, one timer for all streams, one
process.

`python upstream.py --ports 2` prints one JSON line with its ports and then serves until it is
killed. It is no simulator: it checks nothing about tokens and exists so that a proxy, not the
engine, is what a bench measures. Each SSE event is one HTTP chunk and one write, as uvicorn sends
them. `--fault` breaks replies on purpose, so that a test can show that the load generator notices.
`--tokenizer FOLDER`: engines that tokenise as that model and publish KV events (see `held`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import TYPE_CHECKING, cast

import uvloop
import wire

if TYPE_CHECKING:
    from held import Held

SLOTS = 4096  # of the timer wheel; one per millisecond, so intervals up to 4 s
MODELS = (
    b'{"object":"list","data":[{"id":"%s","object":"model","created":%s,"owned_by":"vllm",'
    b'"root":"%s","parent":null,"max_model_len":32768,"permission":[]}]}'
)
METRICS = (
    b"# TYPE vllm:num_requests_running gauge\n"
    b'vllm:num_requests_running{engine="0",model_name="bench"} 0.0\n'
    b"# TYPE vllm:num_requests_waiting gauge\n"
    b'vllm:num_requests_waiting{engine="0",model_name="bench"} 0.0\n'
)
FAULTS = ("", "drop", "swap", "cut", "text", "status")


class Wheel:
    """Due streams by millisecond. A late tick catches up; a stream keeps its own rhythm."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.zero = loop.time()
        self.tick = 0
        self.slots: list[list[Stream]] = [[] for _ in range(SLOTS)]
        self.phase = 0

    def add(self, stream: Stream, interval_ms: int) -> None:
        """First chunk after a part of the interval that differs from stream to stream."""
        self.phase += 7
        stream.due = self.tick + 1 + self.phase % interval_ms
        self.slots[stream.due % SLOTS].append(stream)

    def run(self) -> None:
        now = int((self.loop.time() - self.zero) * 1000)
        while self.tick < now:
            self.tick += 1
            slot = self.tick % SLOTS
            due, self.slots[slot] = self.slots[slot], []
            for stream in due:
                if stream.step():
                    stream.due += stream.ask.interval_ms
                    self.slots[stream.due % SLOTS].append(stream)
        self.loop.call_later(0.001, self.run)


class Stream:
    """One SSE reply under way."""

    __slots__ = ("ask", "due", "engine", "head", "sent")

    def __init__(self, engine: Engine, ask: wire.Ask) -> None:
        self.engine = engine
        self.ask = ask
        self.head = wire.event_head(ask.nonce)
        self.sent = 0
        self.due = 0

    def start(self) -> None:
        """Head, role and first token leave at once; an interval beyond the wheel means: no more."""
        role = wire.chunk(self.head + wire.ROLE_TAIL)
        self.engine.write(self.engine.sse_head % self.ask.nonce + role)
        if self.ask.interval_ms == 0:
            while self.step():
                pass
        elif self.step() and self.ask.interval_ms < SLOTS:
            self.engine.wheel.add(self, self.ask.interval_ms)

    def step(self) -> bool:
        """Send the next chunk; False when there is nothing more to send."""
        engine = self.engine
        if engine.stream is not self:
            return False  # the other side has left
        token, fault = self.sent, engine.fault
        if fault and token == 1:
            token = self.spoil(fault)
            if token < 0:
                return fault == "drop"
        event = self.head + wire.TOKENS[token] + wire.EVENT_TAIL
        self.sent += 1
        if self.sent < self.ask.chunks:
            engine.write(b"%x\r\n%s\r\n" % (len(event), event))
            return True
        engine.write(wire.chunk(event))
        closing = wire.closing_events(self.head, self.ask.usage)
        engine.write(b"".join(map(wire.chunk, closing)) + wire.LAST_CHUNK)
        engine.stream = None
        return False

    def spoil(self, fault: str) -> int:
        """The token to send in place of the second one; -1: none."""
        if fault == "cut":
            self.engine.transport.close()
            return -1
        if fault == "drop":
            self.sent += 1
            return -1
        return 2 if fault == "swap" else 1


class Engine(asyncio.Protocol):
    """One connection from the proxy (or, in a direct run, from the load generator)."""

    transport: asyncio.Transport
    sse_head = wire.SSE_HEAD

    def __init__(self, wheel: Wheel, fault: str, held: Held | None) -> None:
        self.wheel = wheel
        self.fault = fault
        self.held = held
        self.buffer = b""
        self.stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.write = self.transport.write

    def connection_lost(self, exc: Exception | None) -> None:
        self.stream = None

    def data_received(self, data: bytes) -> None:
        data = self.buffer + data if self.buffer else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self.buffer = data
            return
        need = end + 4 + content_length(data[:end])
        if len(data) < need:
            self.buffer = data
            return
        self.buffer = data[need:]
        self.answer(data, data[end + 4 : need])

    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST " + wire.PATH + b" "):
            self.chat(wire.parse_ask(body))
        elif head.startswith(b"GET /health "):
            self.reply(b"200 OK", b"")
        elif head.startswith(b"GET /v1/models"):
            self.reply(b"200 OK", MODELS % (wire.MODEL, wire.CREATED, wire.MODEL))
        elif head.startswith(b"GET /metrics"):
            self.reply(b"200 OK", METRICS)
        elif self.held is not None and (found := self.held.answer(head, body)) is not None:
            self.reply(b"200 OK", json.dumps(found).encode())
        else:
            self.reply(b"404 Not Found", b'{"detail":"Not Found"}')

    def chat(self, ask: wire.Ask) -> None:
        if self.held is not None and (number := wire.prompt_number(ask.nonce)) >= 0:
            self.held.request(number)
        if ask.stream:
            self.stream = Stream(self, ask)
            self.stream.start()
            return
        body = wire.json_body(ask.nonce)
        if self.fault == "text":
            body = body.replace(b"Zurich", b"Geneva")
        self.reply(b"500 Oops" if self.fault == "status" else b"200 OK", body)

    def reply(self, status: bytes, body: bytes) -> None:
        self.write(wire.JSON_HEAD % (status, len(body)) + body)


def content_length(head: bytes) -> int:
    at = head.lower().find(b"\r\ncontent-length:")
    if at < 0:
        return 0
    return int(head[at + 17 :].split(b"\r\n", 1)[0])


async def serve(ports: int, fault: str, tokenizer: str) -> None:
    loop = asyncio.get_running_loop()
    wheel = Wheel(loop)
    held: list[Held] = []
    if tokenizer:
        from held import Held, Library  # needs the built project

        library = Library.of(tokenizer, ports)
        held = [Held(library, place) for place in range(ports)]
    publishing = [loop.create_task(one.publish()) for one in held]
    found = []
    for place in range(ports):
        own = held[place] if held else None
        server = await loop.create_server(
            lambda own=own: Engine(wheel, fault, own),  # type: ignore[misc]
            "127.0.0.1",
            0,
            backlog=4096,
        )
        found.append(server.sockets[0].getsockname()[1])
    events = [(one.publisher.endpoint, one.publisher.replay_endpoint) for one in held]
    print(json.dumps({"ports": found, "events": events}), flush=True)
    wheel.run()
    await asyncio.gather(asyncio.Event().wait(), *publishing)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ports", type=int, default=2, help="how many engines")
    options.add_argument("--fault", choices=FAULTS, default="")
    options.add_argument("--tokenizer", default="", metavar="FOLDER", help="a model's files")
    options.add_argument("--opaque", action="store_true", help="streams do not call themselves so")
    args = options.parse_args()
    if args.opaque:
        Engine.sse_head = wire.SSE_HEAD.replace(b": text/event", b": text/plain; of=text/event")
    uvloop.run(serve(args.ports, args.fault, args.tokenizer))


if __name__ == "__main__":
    main()
