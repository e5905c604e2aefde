"""The side channel between engines: one JSON object a line over TCP, replies matched by id.

It stands in for NIXL's handshake, one-sided reads and notifications. Like them, a read checks
nothing: it returns what lies in the blocks at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

LINE_BYTES_MAX = 16 << 20

Message = dict[str, Any]


class PeerLost(ConnectionError):
    """The other engine is not there, or no longer."""


class Peer:
    """A connection to another engine's side channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._pending: dict[int, asyncio.Future[Message]] = {}
        self._next = 0
        self.lost = False
        self._task = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    async def connect(cls, host: str, port: int) -> Peer:
        """Raises PeerLost."""
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=LINE_BYTES_MAX)
        except OSError as exc:
            raise PeerLost(str(exc)) from exc
        return cls(reader, writer)

    async def ask(self, message: Message) -> Message:
        """Raises PeerLost when the connection ends before the answer."""
        if self.lost:
            raise PeerLost("connection lost")
        self._next += 1
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending[self._next] = future
        self._writer.write(orjson.dumps({**message, "id": self._next}) + b"\n")
        return await future

    def tell(self, message: Message) -> None:
        if not self.lost:
            self._writer.write(orjson.dumps(message) + b"\n")

    def close(self) -> None:
        self._task.cancel()
        self._end()

    async def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await self._reader.readline():
                message = orjson.loads(line)
                future = self._pending.pop(message.get("id"), None)
                if future is not None and not future.done():
                    future.set_result(message)
        self._end()

    def _end(self) -> None:
        self.lost = True
        self._writer.close()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(PeerLost("connection lost"))
        self._pending.clear()


class Peers:
    """Connections to other engines by their ids: all who ask for one share its handshake."""

    def __init__(self, fits: Callable[[Message], bool], patience_s: float) -> None:
        """`fits`: whether an engine that says hello so is one like this; `patience_s`: how long
        one that does not answer is waited for."""
        self._fits, self._patience_s = fits, patience_s
        self._known: dict[str, Peer] = {}
        self._connecting: dict[str, asyncio.Task[Peer]] = {}

    def get(self, name: str) -> Peer | None:
        return self._known.get(name)

    async def reach(self, params: Mapping[str, Any]) -> Peer:
        """The connection to the engine that hand-over parameters name. Raises PeerLost."""
        name = str(params["remote_engine_id"])
        peer = self._known.get(name)
        if peer is not None:
            return peer
        task = self._connecting.get(name)
        if task is None:
            work = self._handshake(name, str(params["remote_host"]), int(params["remote_port"]))
            task = self._connecting[name] = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(lambda _: self._connecting.pop(name, None))
        return await asyncio.shield(task)

    async def _handshake(self, name: str, host: str, port: int) -> Peer:
        try:
            peer = await Peer.connect(host, port)
        except PeerLost:
            await asyncio.sleep(self._patience_s)
            raise
        hello = await peer.ask({"op": "hello"})
        if name not in hello["engines"] or not self._fits(hello):
            peer.close()
            raise PeerLost("the engines do not fit together")
        self._known[name] = peer
        return peer

    def close(self) -> None:
        for task in list(self._connecting.values()):
            task.cancel()
        for peer in self._known.values():
            peer.close()
        self._known.clear()


Answer = Callable[[Message], Awaitable[Message | None]]


class SideChannel:
    """Serves other engines; `answer` may take its time, each message has a task of its own."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Raises OSError when the port cannot be bound."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=LINE_BYTES_MAX)
        self.port = self._server.sockets[0].getsockname()[1]

    def drop_all(self) -> None:
        """Breaks every connection, as a restart of the process would."""
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.drop_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, ValueError):
                while line := await reader.readline():
                    task = asyncio.get_running_loop().create_task(
                        self._one(orjson.loads(line), writer))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, message: Message, writer: asyncio.StreamWriter) -> None:
        reply = await self._answer(message)
        if reply is not None and not writer.is_closing():
            writer.write(orjson.dumps({**reply, "id": message.get("id")}) + b"\n")
