"""A network link whose transfers share its bandwidth equally at every moment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

_EPSILON_BYTES = 1.0


@dataclass(slots=True)
class _Move:
    left: float
    done: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future())


class Link:
    """`rate` in bytes per second; 0 = transfers take no time."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._moves: list[_Move] = []
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def move(self, size: int) -> None:
        """Returns when `size` bytes have passed."""
        if self._rate <= 0 or size <= 0:
            return
        self._advance()
        move = _Move(float(size))
        self._moves.append(move)
        self._plan()
        try:
            await move.done
        finally:
            if move in self._moves:
                self._advance()
                self._moves.remove(move)
                self._plan()

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._moves:
            share = (now - self._since) * self._rate / len(self._moves)
            for move in self._moves:
                move.left -= share
        self._since = now

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._moves:
            least = min(move.left for move in self._moves)
            wait = max(least, 0.0) * len(self._moves) / self._rate
            self._timer = asyncio.get_running_loop().call_later(wait, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._advance()
        for move in [m for m in self._moves if m.left <= _EPSILON_BYTES]:
            self._moves.remove(move)
            if not move.done.done():
                move.done.set_result(None)
        self._plan()
