"""Lines of an error log in nginx's form, and nginx's levels."""

from __future__ import annotations

import logging
import time

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


class OneLine(logging.Formatter):
    """`2026/01/31 12:00:00 [error] 4711#0: message`; further lines are folded into the first."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(record.created))
        level = _NAMES.get(record.levelno, record.levelname.lower())
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return f"{stamp} [{level}] {record.process}#0: " + text.rstrip("\n").replace("\n", "\\n ")
