"""A TCP port that leads to a unix socket, as `ssh -L PORT:/path/of/socket` makes one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def forwarded(path: str) -> Iterator[int]:
    """The port, for as long as the block runs; connections end with it."""
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        thread = threading.Thread(target=_accept, args=(server, path, stack), daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _accept(server: socket.socket, path: str, stack: contextlib.ExitStack) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        engine = socket.socket(socket.AF_UNIX)
        engine.connect(path)
        for one, other in ((client, engine), (engine, client)):
            stack.callback(one.close)
            threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)
