"""Listening sockets: opened once by the master, kept over reloads by address, lent to workers.

Invariants: an address is bound before anything that runs has changed; a socket that stays is never
closed and opened again, so no connection that waits in it is lost; with `reuseport` each worker
has a socket of its own, which its successor gets.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.process.orders import Address

File = tuple[int, int] | None


class ListenError(OSError):
    """A listening socket could not be had. The message names the address and the reason."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An address as a configuration asks for it."""

    tag: str  # as written
    host: str
    port: int
    unix_path: str
    unix_mode: int = 0o666  # 0o600 where admin locations are served
    backlog: int = 2048
    reuseport: bool = False

    @property
    def address(self) -> Address:
        return self.host, self.port, self.unix_path

    def open(self) -> socket.socket:
        """A listening socket. Raises ListenError."""
        try:
            sock = self._open_unix() if self.unix_path else self._open_tcp()
        except OSError as exc:
            reason = os.strerror(exc.errno) if exc.errno else str(exc)
            if exc.filename not in (None, self.unix_path):
                reason = f"{exc.filename}: {reason}"
            raise ListenError(f"cannot listen on {self.tag}: {reason}") from exc
        sock.setblocking(False)
        return sock

    def _open_tcp(self) -> socket.socket:
        host = self.host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.reuseport:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, self.port))
            sock.listen(self.backlog)
        except OSError:
            sock.close()
            raise
        return sock

    def _open_unix(self) -> socket.socket:
        # Its folder is usually under /run, which is empty after a boot.
        os.makedirs(os.path.dirname(self.unix_path) or ".", exist_ok=True)
        _remove_stale(self.unix_path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The mode is set before the first connection can come: listen() follows.
        old = os.umask(0o777 & ~self.unix_mode)
        try:
            sock.bind(self.unix_path)
            sock.listen(self.backlog)
        except OSError:
            sock.close()
            raise
        finally:
            os.umask(old)
        return sock


def _remove_stale(path: str) -> None:
    """A socket file that nobody listens on is left over from a crash; a live one is an error."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise FileExistsError(17, "the file exists and is not a socket", path)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(98, "another process listens on it", path)


@dataclass(slots=True)
class Sockets:
    """The master's. An address has one socket, or one per worker (`reuseport`)."""

    open: dict[Address, list[socket.socket]] = field(default_factory=dict)
    files: dict[Address, File] = field(default_factory=dict)  # of unix sockets
    inherited: dict[Address, list[socket.socket]] = field(default_factory=dict)

    def take(self, wanted: Iterable[Wanted], workers: int) -> dict[Address, list[socket.socket]]:
        """Opens what is not open yet; returns what was opened. Raises ListenError, having closed
        those again.
        """
        added: dict[Address, list[socket.socket]] = {}
        try:
            for one in wanted:
                have = self.open.get(one.address, [])
                missing = (workers if one.reuseport else 1) - len(have)
                for _ in range(missing):
                    added.setdefault(one.address, []).append(self._inherited(one) or one.open())
                    self.files[one.address] = _file(one.unix_path)
        except ListenError:
            for address, socks in added.items():
                self._close(address, socks)
            raise
        for address, socks in added.items():
            self.open[address] = [*self.open.get(address, []), *socks]
        return added

    def _inherited(self, one: Wanted) -> socket.socket | None:
        socks = self.inherited.get(one.address)
        return socks.pop(0) if socks else None

    def give_back(self, added: Mapping[Address, list[socket.socket]]) -> None:
        """Undoes a `take` whose reload was refused after all."""
        for address, socks in added.items():
            left = [sock for sock in self.open[address] if sock not in socks]
            self._close(address, socks, unlink=not left)
            if left:
                self.open[address] = left
            else:
                del self.open[address]

    def keep(self, addresses: Iterable[Address]) -> None:
        """Closes all others: those that a reload removed, and inherited ones nobody asked for."""
        wanted = set(addresses)
        for address in self.open.keys() - wanted:
            self._close(address, self.open.pop(address))
        for address, socks in self.inherited.items():
            self._close(address, socks, unlink=False)
        self.inherited.clear()

    def of(self, worker: int) -> dict[Address, socket.socket]:
        """What one worker listens on. `worker` counts from 0."""
        return {address: socks[worker % len(socks)] for address, socks in self.open.items()}

    def close(self, unlink: bool) -> None:
        for address, socks in self.open.items():
            self._close(address, socks, unlink=unlink)
        self.open.clear()

    def _close(
        self, address: Address, socks: Iterable[socket.socket], unlink: bool = True
    ) -> None:
        """Takes the file of a unix socket away, unless it is another one's by now: whoever found
        ours dead has put its own there.
        """
        path = address[2]
        ours = bool(path) and _file(path) == self.files.get(address)
        for sock in socks:
            sock.close()
        if unlink and ours:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _file(path: str) -> File:
    """Which file a path is: device and number; None where there is none."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino
