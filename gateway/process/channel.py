"""A pipe between the master and one child: whole messages both ways, and descriptors downwards.

A frame is its length (4 bytes), its number of descriptors (2 bytes) and its body; the descriptors
travel with the frame's first byte. Orders are pickled, since the child trusts its master; reports
are JSON, since the master, who may be root, trusts no child.

Invariants: nothing here blocks; what waits to be sent is bounded by PENDING_MAX.
"""

from __future__ import annotations

import array
import contextlib
import os
import pickle
import socket
import struct
from collections import deque
from typing import Any

import orjson

PENDING_MAX = 64 << 20  # bytes; a child that far behind has stopped
FRAME_MAX = 64 << 20
DESCRIPTORS_MAX = 250  # of one frame; Linux allows 253
_HEAD = struct.Struct("!IH")
_READ = 1 << 16


class Broken(Exception):
    """The other side is gone, or does not keep to the protocol."""


class Channel:
    """One end. `receive` and `flush` are called when the socket is readable and writable."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._out: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._waiting = 0
        self._in = bytearray()
        self._descriptors: deque[int] = deque()

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def behind(self) -> bool:
        """Whether something waits until the socket is writable."""
        return bool(self._out)

    # ---- sending ----

    def order(self, order: object, descriptors: tuple[int, ...] = ()) -> None:
        """Master to child. Raises Broken. The descriptors stay the caller's, who must not close
        them before the next turn of the master's loop at least.
        """
        copies = tuple(os.dup(number) for number in descriptors)
        self._send(pickle.dumps(order, pickle.HIGHEST_PROTOCOL), copies)

    def report(self, report: dict[str, Any]) -> None:
        """Child to master. Raises Broken."""
        self._send(orjson.dumps(report), ())

    def _send(self, body: bytes, descriptors: tuple[int, ...]) -> None:
        if self._waiting + len(body) > PENDING_MAX or len(descriptors) > DESCRIPTORS_MAX:
            raise Broken("too much waits to be sent")
        frame = _HEAD.pack(len(body), len(descriptors)) + body
        self._out.append((frame, descriptors))
        self._waiting += len(frame)
        self.flush()

    def flush(self) -> None:
        """Sends what the socket takes. Raises Broken."""
        while self._out:
            frame, descriptors = self._out[0]
            ancillary = []
            if descriptors:
                packed = array.array("i", descriptors)
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed.tobytes())]
            try:
                sent = self._sock.sendmsg([frame], ancillary)
            except BlockingIOError:
                return
            except OSError as error:
                raise Broken(str(error)) from None
            for number in descriptors:
                os.close(number)
            self._waiting -= sent
            if sent == len(frame):
                self._out.popleft()
            else:
                self._out[0] = frame[sent:], ()

    # ---- receiving ----

    def receive(self) -> list[tuple[bytes, tuple[int, ...]]]:
        """Whole frames: body and descriptors, which are the caller's to close. Raises Broken when
        the other side has closed.
        """
        self._read()
        frames = []
        while len(self._in) >= _HEAD.size:
            length, count = _HEAD.unpack_from(self._in)
            if length > FRAME_MAX:
                raise Broken(f"a frame of {length} bytes")
            end = _HEAD.size + length
            if len(self._in) < end:
                break
            body = bytes(self._in[_HEAD.size : end])
            del self._in[:end]
            frames.append((body, tuple(self._descriptors.popleft() for _ in range(count))))
        return frames

    def _read(self) -> None:
        room = socket.CMSG_SPACE(DESCRIPTORS_MAX * 4)
        while True:
            try:
                data, ancillary, _, _ = self._sock.recvmsg(_READ, room)
            except BlockingIOError:
                return
            except OSError as error:
                raise Broken(str(error)) from None
            for level, kind, packed in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    numbers = array.array("i")
                    numbers.frombytes(packed[: len(packed) - len(packed) % 4])
                    self._descriptors.extend(numbers)
            if not data:
                raise Broken("closed")
            self._in += data
            if len(data) < _READ:
                return

    def close(self) -> None:
        for _, descriptors in self._out:
            for number in descriptors:
                os.close(number)
        for number in self._descriptors:
            os.close(number)
        self._out.clear()
        self._descriptors.clear()
        with contextlib.suppress(OSError):
            self._sock.close()


def order_of(body: bytes) -> Any:
    """A master's order. Only ever called in a child."""
    return pickle.loads(body)


def report_of(body: bytes) -> dict[str, Any]:
    """A child's report. Raises Broken where it is none."""
    try:
        report = orjson.loads(body)
    except ValueError:
        raise Broken("a report that is no JSON") from None
    if not isinstance(report, dict):
        raise Broken("a report that is no object")
    return report
