"""The server of one worker: its listening sockets, its life from start to drained.

uvicorn's Server runs the lifespan and the main loop; connections are the relay's. What it must
never do: close a listener before readiness has said 503, or drop an exchange that still had time
to finish.
The names of uvicorn used here are held by tests/gateway/test_uvicorn_contract.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn
import uvloop

from native import relay

TLS_FAREWELL_S = 1.0
POLL_S = 0.05  # how often a drain looks whether it is over


class ListenError(OSError):
    """A listening socket could not be had. The message names the address and the reason."""


@dataclass(slots=True)
class Listener:
    """One listening socket. `limits` and `server_ctx` are read by the relay and the pipeline."""

    tag: str  # the address as the configuration writes it
    limits: relay.Limits
    server_ctx: object
    host: str = ""
    port: int = 0
    unix_path: str = ""
    unix_mode: int = 0o666  # 0o600 where admin locations are served
    backlog: int = 2048
    ssl_context: ssl.SSLContext | None = None
    sock: socket.socket | None = None

    def bind(self) -> socket.socket:
        """Opens the socket; raises ListenError."""
        try:
            self.sock = self._bind_unix() if self.unix_path else self._bind_tcp()
        except OSError as exc:
            reason = os.strerror(exc.errno) if exc.errno else str(exc)
            raise ListenError(f"cannot listen on {self.tag}: {reason}") from exc
        return self.sock

    def _bind_tcp(self) -> socket.socket:
        host = self.host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, self.port))
            sock.listen(self.backlog)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        return sock

    def _bind_unix(self) -> socket.socket:
        _remove_stale(self.unix_path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The mode is set before the first connection can come: listen() follows.
        old = os.umask(0o777 & ~self.unix_mode)
        try:
            sock.bind(self.unix_path)
            sock.listen(self.backlog)
        except OSError:
            sock.close()
            raise
        finally:
            os.umask(old)
        sock.setblocking(False)
        return sock

    def close(self) -> None:
        """Closes the socket and removes a unix socket's file."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None
            if self.unix_path:
                with contextlib.suppress(OSError):
                    os.unlink(self.unix_path)


def _remove_stale(path: str) -> None:
    """A socket file that nobody listens on is left over from a crash; a live one is an error."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise FileExistsError(17, "the file exists and is not a socket", path)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(98, "another process listens on it", path)


@dataclass(slots=True)
class Drain:
    """How a worker ends. `announce` is called when readiness must turn to 503."""

    delay_s: float = 0.0  # between that and the closing of the listeners
    timeout_s: float = 30.0  # for exchanges to finish; 0 = as long as they take
    announce: Callable[[], None] = field(default=lambda: None)


class Server(uvicorn.Server):
    """One worker. TERM and INT stop at once, QUIT drains; a second signal ends a drain."""

    def __init__(self, app: Any, gate: object, listeners: Sequence[Listener], drain: Drain) -> None:
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
        self.listeners = listeners
        self.drain = drain
        self.connections: set[relay.Client] = set()
        self.graceful = False
        self.servers: list[asyncio.AbstractServer] = []  # type: ignore[assignment]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(1)
        loop = asyncio.get_running_loop()
        for listener in self.listeners:
            factory = relay.serve_protocol(
                self.gate, self.config.loaded_app, listener, self.connections
            )
            sock = listener.sock or listener.bind()
            create = loop.create_unix_server if listener.unix_path else loop.create_server
            self.servers.append(
                await create(
                    factory,
                    sock=sock,
                    ssl=listener.ssl_context,
                    # A client's farewell is not waited for as long as its handshake.
                    ssl_shutdown_timeout=TLS_FAREWELL_S if listener.ssl_context else None,
                    backlog=listener.backlog,
                )
            )
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.drain.announce()
        if self.graceful and self.drain.delay_s:
            await self._until(lambda: self.force_exit, self.drain.delay_s)
        for server in self.servers:
            server.close()
        for listener in self.listeners:
            listener.close()
        if self.graceful:
            for connection in list(self.connections):
                connection.shutdown()
            limit_s = self.drain.timeout_s or float("inf")
            await self._until(lambda: self.force_exit or not self.connections, limit_s)
        for connection in list(self.connections):
            connection.kill()
        # What was cut off still gets its last bytes and its access line.
        await self._until(lambda: not self.connections, 1.0)
        await self.lifespan.shutdown()

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
