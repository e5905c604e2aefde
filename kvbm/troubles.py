"""The disk's trouble in the log: a line when it begins or becomes another one, one when it ends.

The object store's is told by who talks to it, as it happens.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gateway.log_lines import NOTICE
from kvbm.logs import log
from native import _core


def trouble(figures: Mapping[str, int | str]) -> str:
    """Why the disk takes no blocks; empty where it does, or there is none. Pure."""
    if figures.get("disk_good", 1):
        return ""
    return str(figures.get("disk_trouble") or "it does not say why")


def news(was: str, now: str) -> tuple[int, str] | None:
    """Level and text of a line, where there is something new. Pure."""
    if now == was:
        return None
    if now:
        hint = "what it has is still read; hint: it is tried again every 30 s"
        return logging.ERROR, f"disk: takes no blocks: {now}; {hint}"
    return NOTICE, "disk: takes blocks again"


class Troubles:
    """`look` waits for the core; TimeoutError where that does not answer."""

    def __init__(self, core: _core.KvbmCore) -> None:
        self._core = core
        self._told = ""

    def look(self) -> None:
        now = trouble(self._core.stats())
        if (line := news(self._told, now)) is not None:
            log.log(*line)
        self._told = now
