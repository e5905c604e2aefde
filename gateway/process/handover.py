"""USR2: a new program takes over the listening sockets while the old one still serves.

Invariants: the sockets are never closed, so nothing is refused in between; the pid file always
names the master that will stay, and the old one's is NAME.oldbin, as with nginx.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.logs import log
from gateway.process.orders import Address

VARIABLE = "KVGATE_SOCKETS"
OLD = ".oldbin"


def inherited() -> dict[Address, list[socket.socket]]:
    """What a former master left; the variable is gone afterwards."""
    text = os.environ.pop(VARIABLE, "")
    found: dict[Address, list[socket.socket]] = {}
    if text:
        for host, port, path, number in json.loads(text):
            sock = socket.socket(fileno=number)
            sock.set_inheritable(False)
            found.setdefault((host, port, path), []).append(sock)
    return found


def start(sockets: Mapping[Address, list[socket.socket]]) -> int:
    """Starts this program anew with the sockets; its pid. Raises OSError."""
    rows = [(*address, sock.fileno()) for address, socks in sockets.items() for sock in socks]
    environment = {**os.environ, VARIABLE: json.dumps(rows)}
    argv = [sys.executable, *sys.orig_argv[1:]]
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for *_, number in rows:
            os.set_inheritable(number, True)
        os.execve(sys.executable, argv, environment)
    except BaseException:  # a process of its own: it must not go on as a second master
        log.exception("the new program could not be started")
    finally:
        os._exit(1)


class PidFile:
    """The file that names the master; `path` "" = there is none."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self) -> None:
        """Whoever reads it sees all of it or nothing. Raises OSError."""
        if self._path:
            new = Path(f"{self._path}.{os.getpid()}")
            new.write_text(f"{os.getpid()}\n")
            os.replace(new, self._path)

    def move(self, path: str) -> None:
        """A reload names another file. Raises OSError."""
        if path != self._path:
            former = self._path
            self._path = path
            self.write()
            if former:
                Path(former).unlink(missing_ok=True)

    def step_aside(self) -> None:
        """Makes room for a new program's."""
        if self._path:
            with contextlib.suppress(OSError):
                os.replace(self._path, self._path + OLD)

    def step_back(self) -> None:
        """The new program has ended."""
        if self._path:
            with contextlib.suppress(OSError):
                os.replace(self._path + OLD, self._path)

    def remove(self) -> None:
        """Only what names this process."""
        for path in (self._path, self._path + OLD):
            with contextlib.suppress(OSError, ValueError):
                if self._path and int(Path(path).read_text()) == os.getpid():
                    os.unlink(path)
