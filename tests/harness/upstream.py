"""A scripted engine: a raw HTTP server whose every byte, pause and way to die a test decides.

Invariant: what the engine saw is recorded exactly (head bytes, body, when the other side left), and
it does nothing on its own but answer the gateway's control requests (health, models). A script is
`def script(peer, seen)`, run in the connection's own thread: it may block, and it is told nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable

from harness import waiting
from harness.peer import SCRIPT_WAIT_S, Peer, Script, Seen, read_body
from harness.wire import Malformed, Short

CONTROL_PATHS = frozenset(
    {"/health", "/v1/models", "/metrics", "/version", "/kv_event_sources", "/ping", "/load"}
)
MODELS = (
    b'{"object":"list","data":[{"id":"m1","object":"model","created":1,"owned_by":"vllm",'
    b'"root":"m1","parent":null,"max_model_len":4096,"permission":[]}]}'
)
WAIT_SLICE_S = 0.02
WATCHED = select.EPOLLRDHUP | select.EPOLLONESHOT


def unread(script: Script) -> Script:
    """Marks a script that reads the request's body itself (or leaves it unread)."""
    script.unread_body = True  # type: ignore[attr-defined]
    return script


def answer_ok(peer: Peer, seen: Seen) -> None:
    body = b'{"id":"cmpl-1","object":"text_completion","model":"m1","choices":[]}'
    peer.send(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )


class Engine:
    """Listens on 127.0.0.1 (port kept over `kill` and `revive`) or a unix path."""

    def __init__(
        self,
        *,
        unix_path: str = "",
        tls: ssl.SSLContext | None = None,
        keepalive_s: float = 5.0,
        models: bytes = MODELS,
    ) -> None:
        self.script: Script = answer_ok
        self.keepalive_s = keepalive_s
        self.models = models
        self.control_key = ""  # a bearer token that control requests must carry
        self.control_status = 200
        self.seen: list[Seen] = []
        self.control: list[Seen] = []
        self.peers: list[Peer] = []
        self.failures: list[str] = []  # what scripts raised, other than the other side leaving
        self.changed = threading.Condition(threading.RLock())
        self._unix_path = unix_path
        self._tls = tls
        self._listener: socket.socket | None = None
        self._epoll = select.epoll()
        self._by_fd: dict[int, Peer] = {}
        self.port = 0
        self.revive()
        threading.Thread(target=self._watch, daemon=True).start()

    # ---- what tests call

    @property
    def address(self) -> str:
        return f"unix:{self._unix_path}" if self._unix_path else f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> list[Peer]:
        """Connections that carried data requests."""
        return [peer for peer in self.peers if peer.carried]

    def reset_records(self) -> None:
        """Forgets what was seen and what was scripted; open connections stay open."""
        with self.changed:
            self.script = answer_ok
            self.control_key, self.control_status = "", 200
            self.seen, self.control, self.failures = [], [], []
            self.peers = [peer for peer in self.peers if not peer.closed and not peer.gone_at]
            for peer in self.peers:
                peer.carried = 0

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = 5.0) -> None:
        """Blocks until `condition()` holds. Byte counts change without notice: hence the slices."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while not self.changed.wait_for(condition, WAIT_SLICE_S):
                if time.monotonic() > deadline:
                    raise waiting.NeverHappened(f"not within {timeout_s} s: {what}")

    def wait_seen(self, count: int = 1, timeout_s: float = 5.0) -> Seen:
        """Blocks until `count` data requests have arrived (their heads); the last one."""
        self.wait(
            lambda: len(self.seen) >= count, f"{count} requests, got {len(self.seen)}", timeout_s
        )
        return self.seen[count - 1]

    def note(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def kill(self) -> None:
        """As `kill -9` leaves it: every connection dies, new ones are refused."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        if self._unix_path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._unix_path)
        for peer in list(self.peers):
            peer.close()
        self.note()

    def revive(self) -> None:
        if self._unix_path:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(self._unix_path)
        else:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self.port))
            self.port = listener.getsockname()[1]
        listener.listen(1024)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    # ---- threads

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            if not self._unix_path:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._tls is not None:
                sock.settimeout(10)
                sock = self._tls.wrap_socket(sock, server_side=True)
        except OSError:
            sock.close()
            return
        peer = Peer(sock, self)
        with self.changed:
            self.peers.append(peer)
            self._by_fd[sock.fileno()] = peer
            self.changed.notify_all()
        self._epoll.register(sock.fileno(), WATCHED)
        try:
            while not peer.closed and self._one(peer):
                pass
        except ConnectionError:
            peer.left()
        except (OSError, Short):
            pass
        finally:
            peer.close()
            self.note()

    def _one(self, peer: Peer) -> bool:
        """Serves one request. False: the connection is over."""
        peer.sock.settimeout(self.keepalive_s)
        try:
            if not peer.buffer and not peer.fill():
                return False
        except TimeoutError:
            return False
        peer.sock.settimeout(SCRIPT_WAIT_S)
        peer.sent, peer.received = 0, len(peer.buffer)
        seen = Seen(peer.head(), peer, at=time.monotonic())
        if seen.method == "GET" and seen.target in CONTROL_PATHS:
            self._answer_control(peer, seen)
            return True
        with self.changed:
            peer.carried += 1
            self.seen.append(seen)
            self.changed.notify_all()
        script = self.script
        try:
            if not getattr(script, "unread_body", False):
                read_body(peer, seen)
            script(peer, seen)
        except (OSError, Short):
            raise
        except (Malformed, AssertionError) as error:
            self.failures.append(repr(error))
            raise OSError(str(error)) from None
        finally:
            seen.done_at = time.monotonic()
            self.note()
        return True

    def _answer_control(self, peer: Peer, seen: Seen) -> None:
        with self.changed:
            self.control.append(seen)
            self.changed.notify_all()
        status, body = self.control_status, b""
        if self.control_key and seen.header("authorization") != f"Bearer {self.control_key}":
            status, body = 401, b'{"error":"Unauthorized"}'
        elif seen.target == "/v1/models":
            body = self.models
        elif seen.target == "/kv_event_sources":
            status = 404
        peer.send(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )

    def _watch(self) -> None:
        while True:
            for fd, _ in self._epoll.poll():
                with self.changed:
                    peer = self._by_fd.get(fd)
                    # Our own close looks the same, and the number may already be another socket's.
                    if peer is None or peer.closed or peer.gone_at:
                        continue
                    if _far_end_left(fd):
                        peer.left()
                    else:
                        self._epoll.modify(fd, WATCHED)


def _far_end_left(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return bool(poll.poll(0))
