"""Listening sockets of the daemon's HTTP side, and the servers on them.

A unix socket that nobody answers at is replaced; one that somebody answers at is an error, and
so is what is no socket.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from typing import Any

import uvicorn

from kvbm.conf.model import Address
from kvbm.paths import make_directory, why

BACKLOG = 64


class Server(uvicorn.Server):
    """uvicorn's, without its signal handlers: they are the daemon's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server(app: Any) -> Server:
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", interface="asgi3", proxy_headers=False,
        access_log=False, log_config=None, timeout_graceful_shutdown=2,
    )  # fmt: skip
    return Server(config)


def listen(address: Address) -> socket.socket:
    """A listening socket; raises OSError that names the address."""
    try:
        return _unix(address.unix_path) if address.unix_path else _tcp(address)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen at {address}: {why(error)}") from None


def _tcp(address: Address) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(
        address.host or "127.0.0.1", address.port, type=socket.SOCK_STREAM
    )[0]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(where)
    made.listen(BACKLOG)
    return made


def _unix(path: str) -> socket.socket:
    make_directory(os.path.dirname(path))
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode) and not _answers(path):
            os.unlink(path)
    made = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        made.bind(path)
    finally:
        os.umask(mask)
    made.listen(BACKLOG)
    return made


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0
