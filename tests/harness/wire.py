"""HTTP/1.1 on a blocking socket, read strictly: what both ends of the harness parse with.

Invariant: a message that was cut short is never taken for a whole one (`Short` is raised), and
framing that RFC 9112 forbids in what we send (both lengths, bare LF, folded lines) is an error,
so that a test notices it without looking for it.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from dataclasses import dataclass, field

Headers = list[tuple[bytes, bytes]]
EXTENSION_MAX = 4096  # docs: what the relay takes of one chunk's extensions
HEX = re.compile(rb"[0-9a-fA-F]{1,15}")
CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
BODILESS = frozenset({204, 304})


class Short(Exception):
    """The stream ended (FIN or RST) inside a message. `got`: body bytes read so far."""

    def __init__(self, why: str, got: bytes = b"", head: Head | None = None) -> None:
        super().__init__(f"{why} after {len(got)} body bytes: {got[-80:]!r}")
        self.why = why
        self.got = got
        self.head = head


class Malformed(Exception):
    """The peer sent something that is not the HTTP/1.1 grammar."""


@dataclass(frozen=True, slots=True)
class Head:
    """A start line and its fields. Names are kept as sent; lookups ignore case."""

    start: tuple[bytes, bytes, bytes]
    headers: Headers
    raw: bytes

    def all(self, name: str) -> list[bytes]:
        wanted = name.lower().encode()
        return [value for key, value in self.headers if key.lower() == wanted]

    def get(self, name: str) -> bytes | None:
        values = self.all(name)
        return values[0] if values else None

    @property
    def names(self) -> list[str]:
        return [key.decode("latin-1").lower() for key, _ in self.headers]


@dataclass(slots=True)
class Reply:
    """A whole reply. `chunks`: payloads as they were framed; `interim`: the 1xx before it."""

    head: Head
    body: bytes = b""
    framing: str = "none"  # none | length | chunked | close
    chunks: list[bytes] = field(default_factory=list)
    interim: list[Head] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.head.start[1])

    def header(self, name: str) -> str | None:
        value = self.head.get(name)
        return None if value is None else value.decode("latin-1")


def parse_head(raw: bytes) -> Head:
    """Parses bytes that end in an empty line. Raises `Malformed`."""
    if b"\n" in raw.replace(b"\r\n", b""):
        raise Malformed(f"bare LF in head: {raw!r}")
    lines = raw[:-4].split(b"\r\n")
    parts = lines[0].split(b" ", 2)
    if len(parts) < 2:
        raise Malformed(f"start line: {lines[0]!r}")
    start = (parts[0], parts[1], parts[2] if len(parts) > 2 else b"")
    headers: Headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name.strip() != name or line[:1] in b" \t":
            raise Malformed(f"header line: {line!r}")
        headers.append((name, value.strip(b" \t")))
    return Head(start, headers, raw)


class Wire:
    """Buffered strict reader over a connected socket, and a few ways to write and to leave."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray()
        self.received = 0

    # ---- writing and leaving

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def dribble(self, data: bytes, size: int = 1) -> None:
        """Writes `size` bytes per system call (TCP_NODELAY is set): the receiver sees odd edges."""
        for start in range(0, len(data), size):
            self.sock.sendall(data[start : start + size])

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """FIN. (The kernel makes it RST by itself where bytes lie unread.)"""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def reset(self) -> None:
        """RST."""
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    # ---- reading

    def fill(self, size: int = 1 << 18) -> bool:
        """Reads once more; False at FIN. Raises OSError (reset, timeout)."""
        data = self.sock.recv(size)
        self.received += len(data)
        self.buffer += data
        return bool(data)

    def take(self, size: int) -> bytes:
        while len(self.buffer) < size:
            self._fill_or_short()
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    def take_through(self, marker: bytes) -> bytes:
        searched = 0
        while (at := self.buffer.find(marker, searched)) < 0:
            searched = max(0, len(self.buffer) - len(marker) + 1)
            self._fill_or_short()
        data = bytes(self.buffer[: at + len(marker)])
        del self.buffer[: at + len(marker)]
        return data

    def take_line(self) -> bytes:
        line = self.take_through(b"\n")
        if not line.endswith(b"\r\n"):
            raise Malformed(f"line without CR: {line!r}")
        return line[:-2]

    def at_end(self) -> bool:
        """Waits for the end of the stream: True for FIN or RST, False for further bytes."""
        if self.buffer:
            return False
        try:
            return not self.fill()
        except ConnectionError:
            return True

    def head(self) -> Head:
        return parse_head(self.take_through(b"\r\n\r\n"))

    def chunk(self) -> bytes:
        """One chunk's payload; b"" is the last one, whose trailers must be empty."""
        line = self.take_line()
        if CONTROL.search(line):
            raise Malformed(f"control byte in a chunk's size line: {line!r}")
        size_text = line.split(b";")[0].rstrip(b" \t")
        if len(line) - len(size_text) > EXTENSION_MAX:
            raise Malformed("a chunk extension longer than the gateway takes")
        if not HEX.fullmatch(size_text):
            raise Malformed(f"chunk size {size_text!r}")
        size = int(size_text, 16)
        if size == 0:
            if self.take_line():
                raise Malformed("trailers")
            return b""
        data = self.take(size)
        try:
            end = self.take(2)
        except Short as short:
            raise Short(short.why, data) from None
        if end != b"\r\n":
            raise Malformed("chunk without CRLF at its end")
        return data

    def chunks_until(self, marker: bytes) -> bytes:
        """Payload of whole chunks until `marker` is in it: how it was chunked does not matter."""
        payload = b""
        while marker not in payload:
            data = self.chunk()
            if not data:
                raise Short(f"end of body without {marker!r}", payload)
            payload += data
        return payload

    def body(self, head: Head) -> tuple[str, bytes, list[bytes]]:
        """The body that `head` frames (no close-delimited one). Returns (framing, body, chunks)."""
        codings, lengths = head.all("transfer-encoding"), head.all("content-length")
        if codings and lengths:
            raise Malformed(f"both lengths: {head.raw!r}")
        if len(lengths) > 1 or len(codings) > 1:
            raise Malformed(f"length given twice: {head.raw!r}")
        if codings:
            chunks: list[bytes] = []
            try:
                while data := self.chunk():
                    chunks.append(data)
            except Short as short:
                raise Short(short.why, b"".join(chunks) + short.got, head) from None
            return "chunked", b"".join(chunks), chunks
        if lengths:
            try:
                return "length", self.take(int(lengths[0])), []
            except Short as short:
                raise Short(short.why, short.got, head) from None
        return "none", b"", []

    def reply(self, method: str = "POST") -> Reply:
        """One whole reply. Raises `Short`, `Malformed`, or TimeoutError (the socket's)."""
        interim: list[Head] = []
        while True:
            head = self.head()
            if head.start[1][:1] != b"1":
                break
            interim.append(head)
        if not head.start[0].startswith(b"HTTP/1."):
            raise Malformed(f"status line: {head.raw!r}")
        status = int(head.start[1])
        if method == "HEAD" or status in BODILESS:
            return Reply(head, interim=interim)
        framing, body, chunks = self.body(head)
        if framing == "none":
            framing, body = "close", self._rest(head)
        return Reply(head, body, framing, chunks, interim)

    def _rest(self, head: Head) -> bytes:
        try:
            while self.fill():
                pass
        except ConnectionError:
            raise Short("RST", bytes(self.buffer), head) from None
        body = bytes(self.buffer)
        self.buffer.clear()
        return body

    def _fill_or_short(self) -> None:
        try:
            more = self.fill()
        except ConnectionError:
            raise Short("RST", bytes(self.buffer)) from None
        if not more:
            raise Short("FIN", bytes(self.buffer))
