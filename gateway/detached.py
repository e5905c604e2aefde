"""A log handler that never makes its caller wait or fail: a thread does the writing.

Invariants: at most PENDING_MAX records wait, what comes beyond is dropped and counted; a file or
pipe that cannot be written costs records, nothing else. A process that was forked starts its own
thread with its first record.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable

PENDING_MAX = 4096  # records
CLOSE_S = 2.0  # for the last records to be written


class Detached(logging.Handler):
    def __init__(
        self, path: str, inner: logging.Handler, again: Callable[[], logging.Handler]
    ) -> None:
        """`again` makes the same handler anew, for a process that was forked."""
        super().__init__()
        self.path = path  # where it writes
        self.stuck = False  # closed, but nobody reads what is written
        self.inner = inner
        self.again = again
        self.dropped = 0  # records
        self._pid = 0
        self._queue: queue.Queue[logging.LogRecord | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._pid != os.getpid():
            self._begin()
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def _begin(self) -> None:
        if self._pid:
            # The parent's thread may have been within a write when this process was born: its
            # stream is then locked for ever here.
            self.inner = self.again()
        self._pid = os.getpid()
        self._queue = queue.Queue(PENDING_MAX)
        self._thread = threading.Thread(
            target=self._run, args=(self._queue,), name="error-log", daemon=True
        )
        self._thread.start()

    def _run(self, records: queue.Queue[logging.LogRecord | None]) -> None:
        while (record := records.get()) is not None:
            try:
                self.inner.handle(record)
            except OSError:
                self.dropped += 1

    def close(self) -> None:
        """Writes what waits, within CLOSE_S; else it is `stuck`, and so is whoever waits for the
        inner handler.
        """
        if self._thread is not None and self._pid == os.getpid():
            try:
                self._queue.put_nowait(None)
                self._thread.join(CLOSE_S)
                self.stuck = self._thread.is_alive()
            except queue.Full:
                self.stuck = True
            self._thread = None
            self._pid = 0
        super().close()
