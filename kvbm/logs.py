"""The daemon's log: one line per message, in nginx's form; no secret and no prompt is ever in it.

What repeats is told at most once in `REPEAT_S` per kind: a store that is away must not fill a disk.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
import time
from io import TextIOWrapper

from gateway.log_lines import LEVELS, OneLine
from kvbm.paths import make_directory

REPEAT_S = 10.0
log = logging.getLogger("kvbm")


class File(logging.handlers.WatchedFileHandler):
    """Makes the file's folder, too, whenever it opens it. A file that is lost costs lines."""

    def _open(self) -> TextIOWrapper:
        make_directory(os.path.dirname(self.baseFilename))
        return super()._open()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)


def open_log(path: str, level: str) -> None:
    """Directs the log to `path` ("stderr" or a file) from `level` on. Raises OSError.

    Its folder is made. A file that was moved away or deleted is opened anew, so rotating it needs
    no signal.
    """
    made = logging.StreamHandler(sys.stderr) if path == "stderr" else File(path)
    made.setFormatter(OneLine())
    for old in log.handlers[:]:
        log.removeHandler(old)
        old.close()
    log.addHandler(made)
    log.setLevel(LEVELS[level])
    log.propagate = False


class Seldom:
    """Tells each kind of message at most once in `REPEAT_S`, and how often it was kept back."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}

    def warn(self, kind: str, text: str) -> None:
        now = time.monotonic()
        at, held = self._last.get(kind, (-REPEAT_S, 0))
        if now - at < REPEAT_S:
            self._last[kind] = (at, held + 1)
            return
        self._last[kind] = (now, 0)
        log.warning("%s%s", text, f" ({held} more like it were not logged)" if held else "")
