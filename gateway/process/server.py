"""The server of one worker: its listening sockets, its life from start to drained.

uvicorn's Server runs the lifespan and the main loop; connections are the relay's. What it must
never do: close a listener before readiness has said 503, or drop an exchange that still had time
to finish.
The names of uvicorn used here are held by tests/gateway/test_uvicorn_contract.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
import uvloop

from gateway.process.acceptor import Acceptor, PlainGate, Secured
from gateway.process.sockets import Wanted
from native import relay

POLL_S = 0.05  # how often a drain looks whether it is over
# Connections may idle for so long in a drain: a client that uses one is told with the head of its
# reply that it was the last, rather than cut off while it asks.
FAREWELL_S = 1.0


@dataclass(slots=True)
class Listener:
    """One listening address of this process. `limits` and `server_ctx` are read by the relay and
    the pipeline at every request, so that a reload swaps them here.
    """

    wanted: Wanted
    limits: relay.Limits
    server_ctx: object
    ssl_context: ssl.SSLContext | None = None
    sock: socket.socket | None = None

    @property
    def tag(self) -> str:
        """The address as the configuration writes it."""
        return self.wanted.tag

    @property
    def unix_path(self) -> str:
        return self.wanted.unix_path

    def bind(self) -> socket.socket:
        """Opens the socket where the master has not; raises ListenError."""
        self.sock = self.wanted.open()
        return self.sock


@dataclass(slots=True)
class Drain:
    """How a worker ends. `announce` is called when readiness must turn to 503; `unfinished` tells
    whether anything runs that no connection stands for."""

    delay_s: float = 0.0  # between that and the closing of the listeners
    timeout_s: float = 30.0  # for exchanges to finish; 0 = as long as they take
    announce: Callable[[], None] = field(default=lambda: None)
    unfinished: Callable[[], bool] = field(default=lambda: False)


class Server(uvicorn.Server):
    """One worker. TERM and INT stop at once, QUIT drains; a second signal ends a drain."""

    def __init__(
        self, app: Any, gate: relay.Gate, listeners: Iterable[Listener], drain: Drain
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                # Made per listener in startup(), never by uvicorn.
                http=relay.Client,  # type: ignore[arg-type]
                ws="none",
                lifespan="on",
                interface="asgi3",
                proxy_headers=False,
                log_config=None,
            )
        )
        self.gate = gate
        self.listeners = list(listeners)
        self.drain = drain
        self.connections: set[relay.Client] = set()
        self.graceful = False
        self.began: Callable[[], None] = lambda: None  # called once it accepts connections
        self.listening: dict[int, asyncio.AbstractServer | Acceptor] = {}  # by id of the listener
        # By how many clients this worker is ahead of the least busy other one; None: it is alone.
        self.ahead: Callable[[], int] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(1)
        for listener in self.listeners:
            await self.listen(listener)
        self.started = True
        self.began()

    async def listen(self, listener: Listener) -> None:
        """Begins to accept at an address; again, where it does already: with the TLS context that
        the listener has now. Nothing is refused in between.
        """
        loop = asyncio.get_running_loop()
        factory = relay.serve_protocol(
            self.gate, self.config.loaded_app, listener, self.connections
        )
        # The event loop closes the socket that it is given; ours stays for the next time.
        sock = (listener.sock or listener.bind()).dup()
        made: asyncio.AbstractServer | Acceptor
        shared = self.ahead is not None and not listener.wanted.reuseport
        if shared or listener.ssl_context is not None:
            ahead = self.ahead if shared and self.ahead is not None else lambda: 0
            made = Acceptor(sock, factory, self._secured(listener), ahead)
        else:
            create = loop.create_unix_server if listener.unix_path else loop.create_server
            made = await create(factory, sock=sock, backlog=listener.wanted.backlog)
        former = self.listening.pop(id(listener), None)
        self.listening[id(listener)] = made
        if former is not None:
            former.close()

    def _secured(self, listener: Listener) -> Secured | None:
        if listener.ssl_context is None:
            return None
        plain = relay.serve_protocol(
            PlainGate(self.gate), self.config.loaded_app, listener, self.connections
        )
        return Secured(listener.ssl_context, plain, listener.limits.header_timeout_s)

    def forget(self, listener: Listener) -> None:
        """Accepts no more at an address; its connections close after what runs on them."""
        self.listening.pop(id(listener)).close()
        if listener.sock is not None:
            listener.sock.close()
            listener.sock = None
        for connection in list(self.connections):
            if connection.listener is listener:
                connection.farewell(FAREWELL_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.drain.announce()
        if self.graceful and self.drain.delay_s:
            await self._until(lambda: self.force_exit, self.drain.delay_s)
        for server in self.listening.values():
            server.close()
        for listener in self.listeners:
            if listener.sock is not None:
                listener.sock.close()
        if self.graceful:
            for connection in list(self.connections):
                connection.farewell(FAREWELL_S)
            limit_s = self.drain.timeout_s or float("inf")
            await self._until(lambda: self.force_exit or self._done, limit_s)
        for connection in list(self.connections):
            connection.kill()
        # What was cut off still gets its last bytes and its access line.
        await self._until(lambda: not self.connections, 1.0)
        await self.lifespan.shutdown()

    @property
    def _done(self) -> bool:
        return not self.connections and not self.drain.unfinished()

    async def _until(self, done: Callable[[], bool], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not done() and loop.time() < deadline:
            await asyncio.sleep(POLL_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, self._signal, number)
        yield
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.remove_signal_handler(number)

    def _signal(self, number: int) -> None:
        if self.should_exit:
            self.force_exit = True
        self.graceful = number == signal.SIGQUIT and not self.should_exit
        self.should_exit = True

    def leave(self) -> None:
        """Drains without a word to balancers: another worker serves in the place of this one."""
        if not self.should_exit:
            self.drain.delay_s = 0.0
            self.graceful = self.should_exit = True


def raise_file_limit() -> int:
    """Lifts the soft limit of open files to the hard one; returns it. A stream takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def run(server: Server) -> int:
    """Serves until a signal ends it; returns the exit status."""
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve())
    return 0
