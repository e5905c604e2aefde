"""Event loop and transports without sockets: every read is exactly the piece that a test hands in.

Invariant: what is written is kept in order; a transport that was closed or aborted takes no more
(writing to it then is recorded, for an oracle to judge).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class FakeTransport(asyncio.Transport):
    """Says it is TLS, so that the relay writes through `write` and not to a file descriptor."""

    def __init__(self) -> None:
        super().__init__({"sslcontext": object(), "peername": ("10.9.9.9", 1), "sockname": ("", 2)})
        self.protocol: Any = None
        self.out = bytearray()
        self.closed = False
        self.aborted = False
        self.reading = True
        self.late = 0  # bytes written after the end

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed:
            self.late += len(data)
        else:
            self.out += data

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self.aborted = True
        self._end(None)

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading and not self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def _end(self, error: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, error)


def feed(transport: FakeTransport, data: bytes) -> None:
    """One read, whichever kind of protocol the transport has."""
    protocol = transport.protocol
    if isinstance(protocol, asyncio.BufferedProtocol) or hasattr(protocol, "get_buffer"):
        while data:
            buffer = protocol.get_buffer(len(data))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]
            if transport.closed:
                return
    else:
        protocol.data_received(data)


class FakeLoop(asyncio.SelectorEventLoop):
    """A loop whose unix connections are fake transports, kept in `opened`."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[FakeTransport] = []
        self.faults: list[str] = []
        self.set_exception_handler(self._fault)

    async def create_unix_connection(  # type: ignore[override]
        self, factory: Callable[[], Any], path: str | None = None, **_: object
    ) -> tuple[FakeTransport, Any]:
        transport = FakeTransport()
        transport.protocol = factory()
        transport.protocol.connection_made(transport)
        self.opened.append(transport)
        return transport, transport.protocol

    def _fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")
