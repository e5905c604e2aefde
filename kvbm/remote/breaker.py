"""When a store that fails or crawls is left alone. Pure: time is an argument, in seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

RECENT = 20
PAUSES_MAX = 8  # the longest pause, in first pauses


@dataclass(slots=True)
class Breaker:
    """`failures` in a row open it for `pause_s`, twice as long each time; `slow_s` (0 = off) counts
    a store whose slowest of RECENT loads took longer as failing.
    """

    failures: int
    pause_s: float
    slow_s: float = 0.0
    why: str = ""
    _row: int = 0
    _next_pause_s: float = 0.0
    _until: float = 0.0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def is_open(self, now: float) -> bool:
        return now < self._until

    def succeeded(self, now: float, took_s: float = 0.0) -> None:
        """The store answered, whatever it said. `took_s` > 0: a load, and how long it took."""
        if took_s > 0:
            self._recent.append(took_s)
        crawls = self.slow_s > 0 and len(self._recent) == RECENT
        if crawls and max(self._recent) > self.slow_s:
            self._recent.clear()
            self._open(now, f"a load took {took_s:.2f} s or more")
            return
        self._row, self._next_pause_s, self.why = 0, 0.0, ""

    def failed(self, now: float, why: str) -> None:
        """The store did not answer, or said that it cannot."""
        self._row += 1
        if self._row >= self.failures and not self.is_open(now):
            self._open(now, why)

    def _open(self, now: float, why: str) -> None:
        longest = self.pause_s * PAUSES_MAX
        self._next_pause_s = min(max(self._next_pause_s * 2, self.pause_s), longest)
        self._until = now + self._next_pause_s
        self.why = why
        # After the pause one more failure is enough.
        self._row = self.failures - 1
