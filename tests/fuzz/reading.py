"""Reads what the relay wrote to a client, with the tests' own strict reader."""

from __future__ import annotations

from typing import Any

from harness.wire import Reply, Wire


class _Bytes:
    """Stands for a socket: gives `data`, then FIN."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def recv(self, size: int) -> bytes:
        part, self._data = self._data[:size], self._data[size:]
        return part


def reader(data: bytes) -> Wire:
    sock: Any = _Bytes(data)
    return Wire(sock)


def replies(data: bytes, methods: list[str]) -> list[Reply]:
    """Exactly one whole reply per method. Raises as the strict reader, or AssertionError."""
    wire = reader(data)
    found = [wire.reply(method) for method in methods]
    assert wire.at_end() and not wire.buffer, f"bytes behind the last reply: {bytes(wire.buffer)!r}"
    return found
