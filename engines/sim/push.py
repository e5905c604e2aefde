"""Hand-over by push: prefills that have ended and decode engines that wait, matched by request id.

Both engines are sent the same X-Request-Id; the ids that they make of it differ in a random end.
"""

from __future__ import annotations

import asyncio
import re

_RANDOM_END = re.compile(r"-[0-9a-f]{8}$")


def base_id(name: str) -> str:
    """What two engines have in common of a request's id."""
    return _RANDOM_END.sub("", name)


class Pushes:
    """Of one prefill engine."""

    def __init__(self) -> None:
        self._ready: dict[str, tuple[str, list[int]]] = {}
        self._waiting: dict[str, asyncio.Future[tuple[str, list[int]]]] = {}

    def ended(self, name: str, blocks: list[int]) -> None:
        """A prefill has ended; its blocks are leased."""
        waiting = self._waiting.pop(base_id(name), None)
        if waiting is not None and not waiting.done():
            waiting.set_result((name, list(blocks)))
        else:
            self._ready[base_id(name)] = name, list(blocks)

    async def wanted(self, name: str) -> tuple[str, list[int]]:
        """The prefill (id and blocks) that a decode engine registered for, once it has ended."""
        base = base_id(name)
        ready = self._ready.pop(base, None)
        if ready is not None:
            return ready
        future: asyncio.Future[tuple[str, list[int]]] = asyncio.Future()
        self._waiting[base] = future
        return await future

    def expired(self, name: str) -> None:
        """Its lease has ended: who registers from now on waits for another of that id."""
        if self._ready.get(base_id(name), ("",))[0] == name:
            del self._ready[base_id(name)]

    def clear(self) -> None:
        self._ready.clear()
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()
