"""The daemon's log: one line per message, in nginx's form; no key, token or prompt is ever in it.

What repeats is told at most once in `REPEAT_S` per kind: a store that is away must not fill a disk.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
import time

from gateway.log_lines import LEVELS, OneLine

REPEAT_S = 10.0
log = logging.getLogger("kvbm")


def open_log(path: str, level: str) -> None:
    """Directs the log to `path` ("stderr" or a file) from `level` on. Raises OSError.

    A file that was moved away or deleted is opened anew, so rotating it needs no signal.
    """
    made: logging.Handler
    if path == "stderr":
        made = logging.StreamHandler(sys.stderr)
    else:
        made = logging.handlers.WatchedFileHandler(path)
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
