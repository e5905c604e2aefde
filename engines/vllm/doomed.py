"""Blocks that were promised and did not come: misses for a while, so that nobody asks for ever."""

from __future__ import annotations

from collections.abc import Sequence

DOOMED_MAX = 16_384
DOOMED_S = 10.0


class Doomed:
    """At most `DOOMED_MAX` blocks, the latest. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def add(self, names: Sequence[bytes], now: float, for_s: float = DOOMED_S) -> None:
        for name in names:
            while len(self._until) >= DOOMED_MAX:
                del self._until[next(iter(self._until))]
            self._until.pop(name, None)
            self._until[name] = now + for_s

    def has(self, name: bytes, now: float) -> bool:
        if not self._until or (until := self._until.get(name)) is None:
            return False
        if now < until:
            return True
        del self._until[name]
        return False

    def forgive(self, names: Sequence[bytes]) -> None:
        """They were stored anew."""
        for name in names:
            self._until.pop(name, None)
