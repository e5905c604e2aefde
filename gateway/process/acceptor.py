"""Accepts at a listening socket that several workers share, so that none gets most of the clients;
and where TLS is spoken, looks at a client's first byte before the handshake.

The system wakes every worker for a new connection, and the one that is quickest takes it: on a
quiet machine that is nearly always the same one. Invariant: a worker that holds more clients than
another leaves a new one to the others for YIELD_S, and takes it itself when they have not: being
left with a connection is better than letting it wait.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from gateway.logs import log
from native import relay

SLACK = 4  # clients more than the least busy worker
BATCH = 8  # connections taken in a row
YIELD_S = 0.002
TLS_FAREWELL_S = 1.0  # for a client's farewell; not as long as for its handshake
FULL_S = 0.1  # pause when there are no descriptors left
PLAIN_ON_TLS = "The plain HTTP request was sent to HTTPS port"  # nginx's words

Factory = Callable[[], asyncio.BaseProtocol]


@dataclass(frozen=True, slots=True)
class Secured:
    """TLS of a listening address. `plain` makes the protocol for those who speak plain HTTP there;
    `patience_s` is for a client's first byte.
    """

    context: ssl.SSLContext
    plain: Factory
    patience_s: float


class PlainGate:
    """The relay's gate for those: every request is refused, and recorded as refused."""

    __slots__ = ("_gate",)

    def __init__(self, gate: relay.Gate) -> None:
        self._gate = gate

    def head(self, client: relay.Client, request: relay.Request) -> int:
        self.request(client, request)
        return int(relay.REPLIED)

    def request(self, client: relay.Client, request: relay.Request) -> None:
        self._gate.refuse(client, request, 400, "bad_request", PLAIN_ON_TLS)

    def refuse(
        self, client: relay.Client, request: relay.Request, status: int, code: str, message: str
    ) -> None:
        self._gate.refuse(client, request, status, code, message)

    def abandoned(self, client: relay.Client, request: relay.Request) -> None:
        self._gate.abandoned(client, request)


class Acceptor:
    """`ahead()`: by how many clients this worker is ahead of the least busy other one."""

    def __init__(
        self,
        sock: socket.socket,
        factory: Factory,
        tls: Secured | None,
        ahead: Callable[[], int],
    ) -> None:
        self._sock = sock
        self._factory = factory
        self._tls = tls
        self._ahead = ahead
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._loop.add_reader(sock.fileno(), self._ready)

    def close(self) -> None:
        """Takes no more; connections that were taken stay."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def _ready(self) -> None:
        if self._ahead() > SLACK:
            self._pause(YIELD_S)
        else:
            self._take()

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._timer = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._timer = None
        if self._take():
            self._loop.add_reader(self._sock.fileno(), self._ready)

    def _take(self) -> bool:
        """Accepts a few; False: it had to pause."""
        for _ in range(BATCH):
            try:
                taken, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return True
            except OSError as error:
                log.error("accept: %s", error)
                self._pause(FULL_S)
                return False
            taken.setblocking(False)
            task = self._loop.create_task(self._open(taken))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            if self._ahead() > SLACK:
                return True
        return True

    async def _open(self, taken: socket.socket) -> None:
        factory, tls = self._factory, self._tls
        try:
            if tls is not None and await self._speaks_plainly(taken, tls.patience_s):
                factory, tls = tls.plain, None
            await self._loop.connect_accepted_socket(
                factory,
                taken,
                ssl=None if tls is None else tls.context,
                ssl_shutdown_timeout=TLS_FAREWELL_S if tls is not None else None,
            )
        except OSError:  # it left, said nothing in time, or its handshake failed
            taken.close()

    async def _speaks_plainly(self, taken: socket.socket, patience_s: float) -> bool:
        """Whether a client's first byte is of a word, and not of a handshake; it stays unread.
        Raises TimeoutError, OSError.
        """
        readable = asyncio.Event()
        self._loop.add_reader(taken.fileno(), readable.set)
        try:
            async with asyncio.timeout(patience_s or None):
                await readable.wait()
        finally:
            self._loop.remove_reader(taken.fileno())
        return taken.recv(1, socket.MSG_PEEK).isalpha()
