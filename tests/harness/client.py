"""A raw client: says exactly the bytes a test wants, and reads replies strictly.

Invariant: it never repairs, retries or hides anything; what cannot be said with it is not HTTP/1.x.
"""

from __future__ import annotations

import json
import socket
import ssl
import time

from harness.wire import Reply, Wire

TIMEOUT_S = 15.0


def request_bytes(
    body: bytes = b"",
    *,
    method: str = "POST",
    target: str = "/v1/completions",
    headers: tuple[tuple[str, str], ...] = (),
    version: str = "1.1",
    framed: bool = True,
) -> bytes:
    """A request's bytes; `framed` adds Content-Length (for a body or a method that has one)."""
    lines = [f"{method} {target} HTTP/{version}", "Host: gateway.test"]
    lines += [f"{name}: {value}" for name, value in headers]
    if framed and (body or method in ("POST", "PUT")):
        if not any(name.lower() == "content-type" for name, _ in headers):
            lines.append("Content-Type: application/json")
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def prompt(stream: bool = False, **fields: object) -> bytes:
    """A small JSON body for /v1/completions."""
    return json.dumps({"model": "m1", "prompt": "hello", "stream": stream, **fields}).encode()


def chunked(*parts: bytes) -> bytes:
    """A chunked body of the given parts, ended."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


class Client(Wire):
    """One connection to the gateway; `address` is (host, port) or a unix path."""

    def __init__(
        self,
        address: tuple[str, int] | str,
        *,
        timeout_s: float = TIMEOUT_S,
        receive_buffer: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        sock = socket.socket(family)
        sock.settimeout(timeout_s)
        if receive_buffer:
            # Before connect: the window scale is agreed on in the handshake.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(address)
        if family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname="localhost")
        super().__init__(sock)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def ask(self, body: bytes = b"", **how: object) -> Reply:
        """Sends one request (arguments of `request_bytes`) and reads its whole reply."""
        self.send(request_bytes(body, **how))  # type: ignore[arg-type]
        return self.reply(str(how.get("method", "POST")))

    def silent_for(self, seconds: float) -> bool:
        """True when no byte and no end of stream arrives for `seconds`."""
        if self.buffer:
            return False
        before = self.sock.gettimeout()
        self.sock.settimeout(seconds)
        try:
            self.fill()
            return False
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(before)

    def ends_within(self, seconds: float) -> bool:
        """True when the other side ends the stream within `seconds`; bytes before that are kept."""
        before, deadline = self.sock.gettimeout(), time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                self.sock.settimeout(left)
                if not self.fill():
                    return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        finally:
            self.sock.settimeout(before)
        return False
