"""The daemon's log: one line per message, in nginx's form; no key, token or prompt is ever in it.

What repeats is told at most once in `REPEAT_S` per kind: a store that is away must not fill a disk.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
import time

REPEAT_S = 10.0
NOTICE = 25
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": NOTICE,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "crit": logging.CRITICAL,
    "alert": logging.CRITICAL + 5,
    "emerg": logging.CRITICAL + 10,
}
_NAMES = {number: name for name, number in LEVELS.items()}

log = logging.getLogger("kvbm")


class _OneLine(logging.Formatter):
    """`2026/01/31 12:00:00 [error] 4711#0: message`; further lines are folded into the first."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(record.created))
        level = _NAMES.get(record.levelno, record.levelname.lower())
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return f"{stamp} [{level}] {record.process}#0: " + text.rstrip("\n").replace("\n", "\\n ")


def open_log(path: str, level: str) -> None:
    """Directs the log to `path` ("stderr" or a file) from `level` on. Raises OSError.

    A file that was moved away or deleted is opened anew, so rotating it needs no signal.
    """
    made: logging.Handler
    if path == "stderr":
        made = logging.StreamHandler(sys.stderr)
    else:
        made = logging.handlers.WatchedFileHandler(path)
    made.setFormatter(_OneLine())
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
