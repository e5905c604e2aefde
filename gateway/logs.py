"""The error log and the access logs: one line each, written off the event loop, bounded.

Invariants: a full disk or a blocked pipe costs log lines, never requests; what is dropped is
counted; no header value, token or prompt is ever put into the error log.
"""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
import os
import queue
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Container
from typing import Protocol, TextIO, TypeVar, cast

from gateway.detached import Detached
from gateway.log_lines import LEVELS, OneLine
from native.relay import LogBuffer

# A buffer of this size goes to the writer at once, a smaller one after so long. To wake the writer
# costs as much as two hundred lines: a busy worker is to do it once for thousands.
FLUSH_BYTES = 1 << 20
FLUSH_S = 1.0
PENDING_BYTES_MAX = 8 << 20  # handed over and not yet written; more is dropped and counted

_STDERR = ("", "stderr")

log = logging.getLogger("kvgate")
AnySink = TypeVar("AnySink", bound="Sink")


def _stderr() -> TextIO:
    return open(2, "w", closefd=False)  # lives as long as the process


def _handler(path: str, stderr: TextIO) -> logging.Handler:
    made: logging.Handler
    if path in _STDERR:
        made = logging.StreamHandler(stderr)
    else:
        made = logging.handlers.WatchedFileHandler(path)
    made.setFormatter(OneLine())
    return made


def open_error_log(path: str, level: str) -> None:
    """Directs the error log to `path` ("stderr" or a file) from `level` on. Raises OSError.

    Where stderr stays stderr nothing is waited for: a reader who has stopped reading would hold up
    every reload.
    """
    for name, number in LEVELS.items():
        logging.addLevelName(number, name)
    paths = [old.path for old in log.handlers if isinstance(old, Detached)]
    if paths != [path] or path not in _STDERR:
        handler = _handler(path, sys.stderr)
        _close_error_logs()
        log.addHandler(Detached(path, handler, lambda: _handler(path, _stderr())))
    log.setLevel(LEVELS[level])
    log.propagate = False


def _close_error_logs() -> list[logging.Handler]:
    closed = log.handlers[:]
    for old in closed:
        log.removeHandler(old)
        old.close()
    return closed


def close_error_log() -> bool:
    """Writes what waits; False: nobody reads it, and an exit that flushes streams would hang."""
    closed = _close_error_logs()
    return not any(isinstance(old, Detached) and old.stuck for old in closed)


def check_log(path: str) -> None:
    """Raises OSError where a log cannot be opened."""
    fd = _open("stderr" if path == "" else path)
    if fd > 2:
        os.close(fd)


class Later(Protocol):
    """Lines that the writer's thread makes. `len`: bytes that they hold until then, about."""

    def __len__(self) -> int: ...

    def render(self) -> bytes: ...


class Sink:
    """One access log. The event loop appends to `buffer`, which says when to call `filled`."""

    name = "access log"
    __slots__ = (
        "__weakref__", "_timer", "_writer", "buffer", "dropped", "fd", "flush_bytes", "flush_s",
        "handed", "path", "torn", "written",
    )  # fmt: skip

    def __init__(self, path: str, writer: Writer) -> None:
        """`path`: a file, "stdout" or "stderr". Raises OSError where it cannot be opened."""
        self.path = path
        self.fd = self.open()  # -1: no configuration names it any more
        self.dropped = 0  # lines
        self.handed = 0  # bytes ever given to the writer thread; only the event loop counts here
        self.written = 0  # and only the thread here
        self.torn = False  # the file ends within a line; only the thread looks
        self.buffer = LogBuffer()
        self.hold(FLUSH_BYTES, FLUSH_S)
        self._timer: asyncio.TimerHandle | None = None
        self._writer = writer

    def open(self) -> int:
        """Raises OSError."""
        return _open(self.path)

    def hold(self, flush_bytes: int, flush_s: float) -> None:
        """How much is kept, and for how long; 0 = until so much is there."""
        self.flush_bytes = self.buffer.limit = flush_bytes
        self.flush_s = flush_s

    def filled(self) -> None:
        """To be called after a buffer's first line and those beyond its limit; else it is idle."""
        self.buffer.known = True
        if self.size >= self.flush_bytes:
            self.flush()
        elif self._timer is None and self.flush_s:
            self._timer = asyncio.get_running_loop().call_later(self.flush_s, self.flush)

    def flush(self) -> None:
        """Hands what was collected to the writer, or drops it when the writer is far behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, data = self.take()
        if not lines:
            return
        if self.handed - self.written > PENDING_BYTES_MAX:
            self.dropped += lines
            return
        self._writer.put(self, data)

    @property
    def size(self) -> int:
        """Bytes that were collected."""
        return self.buffer.size

    def take(self) -> tuple[int, bytes | Later]:
        """What was collected, and how many lines it is."""
        return self.buffer.lines, self.buffer.take()


def _open(path: str) -> int:
    if path in ("stdout", "stderr"):
        return 1 if path == "stdout" else 2
    # A pipe without a reader is refused at once instead of waited for.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(path, flags, 0o644)
    os.set_blocking(fd, True)
    return fd


class Writer:
    """The thread that writes access logs. Its queue is bounded by PENDING_BYTES_MAX per sink."""

    def __init__(self) -> None:
        self.sinks: dict[tuple[type[Sink], str], Sink] = {}
        self.errors = 0  # failed writes
        # b"": open it again; None: close it
        self._queue: queue.SimpleQueue[tuple[Sink | None, bytes | Later | None]]
        self._queue = queue.SimpleQueue()
        self._former: weakref.WeakSet[Sink] = weakref.WeakSet()
        self._dropped: Counter[type[Sink]] = Counter()  # lines, of former sinks
        self._thread: threading.Thread | None = None

    def sink(self, path: str, buffer: int = 0, flush_s: float = 0.0) -> Sink:
        """The access log at a path. `buffer`: bytes to keep at most, for `flush_s` at most (0 =
        until it is full); 0 = as usual. Raises OSError.
        """
        sink = self.of(path, Sink)
        sink.hold(buffer or FLUSH_BYTES, flush_s if buffer or flush_s else FLUSH_S)
        return sink

    def of(self, path: str, kind: type[AnySink]) -> AnySink:
        """The same path is the same sink of a kind, over reloads too. Raises OSError."""
        if (kind, path) not in self.sinks:
            self.sinks[kind, path] = kind(path, self)
        return cast(AnySink, self.sinks[kind, path])

    def put(self, sink: Sink, data: bytes | Later) -> None:
        self._begin()
        sink.handed += len(data)
        self._queue.put((sink, data))

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
            self._thread.start()

    def keep(self, wanted: Container[Sink]) -> None:
        """Closes the files of all others. Requests that still log there open them for each line."""
        for key, sink in list(self.sinks.items()):
            if sink not in wanted:
                del self.sinks[key]
                sink.flush()
                self._former.add(sink)
                self._dropped[key[0]] += sink.dropped
                self._begin()
                self._queue.put((sink, None))

    def reopen(self) -> None:
        """Opens every file again under its name: after a rotation (USR1)."""
        self._begin()  # it may not have written anything yet
        for sink in self.sinks.values():
            sink.flush()
            if sink.fd > 2:
                self._queue.put((sink, b""))

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what is there and ends the thread, waiting at most `timeout_s`."""
        for sink in (*self.sinks.values(), *self._former):
            sink.flush()
        if self._thread is not None:
            self._queue.put((None, b""))
            self._thread.join(timeout_s)
            self._thread = None

    def discard(self) -> None:
        """Closes the files of a writer that never wrote."""
        for sink in self.sinks.values():
            if sink.fd > 2:
                os.close(sink.fd)
        self.sinks.clear()

    def dropped(self, kind: type[Sink]) -> int:
        """Lines of all sinks of a kind, former ones too."""
        now = sum(sink.dropped for (of, _), sink in self.sinks.items() if of is kind)
        return self._dropped[kind] + now

    def _run(self) -> None:
        while True:
            sink, found = self._queue.get()
            if sink is None:
                return
            data = found if isinstance(found, bytes | None) else found.render()
            try:
                error = self._serve(sink, data)
            except OSError as failed:
                sink.dropped += data.count(b"\n") if data else 0
                error = failed
            if error is not None:
                self.errors += 1
                if self.errors == 1:
                    log.error("%s `%s` cannot be written: %s", sink.name, sink.path, error)
            sink.written += len(found or b"")

    @staticmethod
    def _serve(sink: Sink, data: bytes | None) -> OSError | None:
        """The fault that kept it from writing all. Raises OSError where none can be opened."""
        if data is None:
            fd, sink.fd = sink.fd, -1
            if fd > 2:
                os.close(fd)
        elif sink.fd < 0:
            fd = sink.open()
            try:
                return _write_all(sink, fd, data)
            finally:
                if fd > 2:
                    os.close(fd)
        elif data:
            return _write_all(sink, sink.fd, data)
        else:
            fresh = sink.open()
            os.close(sink.fd)
            sink.fd = fresh
            sink.torn = False
        return None


def _write_all(sink: Sink, fd: int, data: bytes) -> OSError | None:
    """A line that a full disk cut short is counted as dropped, and ended before the next one."""
    before, at = int(sink.torn), 0
    data = b"\n" * before + data
    view = memoryview(data)
    try:
        while at < len(data):
            at += os.write(fd, view[at:])
    except OSError as error:
        sink.torn = data[at - 1] != ord("\n") if at else sink.torn
        sink.dropped += data.count(b"\n", max(at, before))
        return error
    sink.torn = False
    return None
