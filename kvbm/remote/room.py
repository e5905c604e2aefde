"""How many errands are under way at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Room:
    """Places for `most` errands; one event loop's."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._freed = asyncio.Event()

    @property
    def free(self) -> int:
        return self._most - self._held

    async def wait(self) -> None:
        while self.free <= 0:
            self._freed.clear()
            await self._freed.wait()

    def hold(self, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """The same work, which takes a place from now on until it has ended."""
        self._held += 1
        return self._end(work)

    async def _end(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._held -= 1
            self._freed.set()
