"""Which blocks of the disk were found damaged, or by a verify not to be read: the core counts
them, here they get their names.

A damaged block is forgotten, and that is a change among the numbered ones. Others go for other
reasons: where more went than were damaged while it was not looked, all of them are suspects.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvbm.events import DISK, Change
from kvbm.logs import log
from native import _core

KEPT_MAX = 1024  # blocks of which `blocks` tells; later ones are in the log only
LOGGED_MAX = 8  # per look
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Lost:
    """`certain`: damaged, or not to be read; else it is one of several of which some were."""

    namespace: str
    key: str
    certain: bool
    tier: str = "disk"


def lost(count: int, changes: Sequence[Change], prints: Mapping[int, bytes]) -> list[Lost]:
    """The blocks that `count` faults of the disk can have cost. Pure."""
    gone = {
        (n, key): None for what, tier, n, key, _ in changes if (what, tier) == ("removed", DISK)
    }
    certain = len(gone) <= count
    return [Lost(prints.get(n, b"").hex(), key.hex(), certain) for n, key in gone]


class Losses:
    """From its making on. `verify`, `look` and `blocks` may be called from any thread, and wait
    for the core; TimeoutError where that does not answer.
    """

    def __init__(self, core: _core.KvbmCore) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._kept: list[Lost] = []
        self._corrupt, self._bad, self._seen = self._figures()

    def verify(self, rate: int) -> bool:
        """Begins to verify all, and to collect anew; False: there is no disk."""
        with self._lock:
            self._kept, self._bad = [], 0
        return self._core.scrub(rate)

    def look(self) -> None:
        """Logs and keeps what was lost since the last look."""
        with self._lock:
            corrupt, bad, number = self._figures()
            count = max(corrupt - self._corrupt, bad - self._bad)
            if count > 0:
                number = self._tell(count)
            self._corrupt, self._bad, self._seen = corrupt, bad, number

    def blocks(self) -> list[Lost]:
        """What was lost since the last `verify` began."""
        self.look()
        with self._lock:
            return self._kept[:]

    def _figures(self) -> tuple[int, int, int]:
        """Blocks that were damaged, those that the verify found bad, the last change's number."""
        report, figures = self._core.scrub_report(), self._core.stats()
        bad = report[2] if report is not None else 0
        return int(figures.get("disk_corrupt", 0)), bad, int(figures["changes"])

    def _tell(self, count: int) -> int:
        """The number of the last change that was looked at."""
        changes: list[Change] = []
        following, full = self._seen + 1, True
        while full:
            _, first, page = self._core.changes(following, PAGE)
            changes += page
            following, full = first + len(page), len(page) == PAGE
        prints = {row[0]: row[1] for row in self._core.namespaces()}
        found = lost(count, changes, prints)
        self._kept += found[: KEPT_MAX - len(self._kept)]
        for one in found[:LOGGED_MAX]:
            what = "is damaged" if one.certain else f"may be one of {count} that are damaged"
            log.warning("disk: a block %s and was forgotten: %s %s", what, one.namespace, one.key)
        if len(found) > LOGGED_MAX:
            log.warning("disk: and %d more", len(found) - LOGGED_MAX)
        return following - 1
