"""Accepts at a listening socket that several workers share, so that none gets most of the clients.

The system wakes every worker for a new connection, and the one that is quickest takes it: on a
quiet machine that is nearly always the same one. Invariant: a worker that holds more clients than
another leaves a new one to the others for YIELD_S, and takes it itself when they have not: being
left with a connection is better than letting it wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from gateway.logs import log

SLACK = 4  # clients more than the least busy worker
BATCH = 8  # connections taken in a row
YIELD_S = 0.002
TLS_FAREWELL_S = 1.0  # for a client's farewell; not as long as for its handshake
FULL_S = 0.1  # pause when there are no descriptors left


class Acceptor:
    """`ahead()`: by how many clients this worker is ahead of the least busy other one."""

    def __init__(
        self,
        sock: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
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
        with contextlib.suppress(OSError):  # it left, or its handshake failed
            await self._loop.connect_accepted_socket(
                self._factory,
                taken,
                ssl=self._tls,
                ssl_shutdown_timeout=TLS_FAREWELL_S if self._tls else None,
            )
