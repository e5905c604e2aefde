"""What lies beside the engines: kvbm daemons that their `server` lines name, followed by their
events as engines are.

Invariants: a daemon named by several lines is followed once; what it holds is credited only while
its events come, and to those engines alone that can load from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gateway.kv.feed import View, Wanted
from gateway.kv.sources import Source
from gateway.kv.trust import BLIND, NOT_ASKED, Standing

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from gateway.kv.events import Key
    from native import _core

Views = Callable[["Key"], View | None]


class Stores:
    """`index` numbers them beside the engines' slots."""

    def __init__(self, index: _core.Index) -> None:
        self._index = index
        self._numbers: dict[Source, int] = {}
        self._reach: dict[int, int] = {}  # slots of engines that are credited with a store

    def wanted(self, engines: Iterable[Engine]) -> dict[Key, Wanted]:
        """What is to be followed for them."""
        named = {source for engine in engines if (source := _source(engine)) is not None}
        for source in named - self._numbers.keys():
            self._numbers[source] = self._index.add_store()
        return {_key(source): Wanted(self._numbers[source], source) for source in named}

    def left(self, wanted: Iterable[Wanted]) -> list[int]:
        """Numbers of those that nobody wants any more; they are not ours from now on."""
        kept = {want.source for want in wanted}
        return [self._numbers.pop(source) for source in self._numbers.keys() - kept]

    def look(self, engines: Iterable[Engine], views: Views) -> None:
        """Credits engines with what their stores hold, where that is known."""
        reach = {}
        for engine in engines:
            source = _source(engine)
            if source in self._numbers and _standing(source, views).state != BLIND:
                reach[engine.index_slot] = self._numbers[source]
        for slot in self._reach.keys() - reach.keys():
            self._index.reach(slot, None)
        for slot, number in reach.items():
            if self._reach.get(slot) != number:
                self._index.reach(slot, number)
        self._reach = reach

    def forget(self, slot: int) -> None:
        """A slot is another engine's from now on."""
        self._reach.pop(slot, None)

    def status(self, engine: Engine, views: Views) -> dict[str, Any] | None:
        """None where it has none."""
        source = _source(engine)
        if source is None or source not in self._numbers:
            return None
        number, standing = self._numbers[source], _standing(source, views)
        return {
            "endpoint": source.endpoint,
            "trust": standing.state,
            "reason": standing.reason,
            "blocks": self._index.held(number),
            "unknown_blocks": self._index.waiting(number),
        }


def _source(engine: Engine) -> Source | None:
    line = engine.line
    return Source(line.kvbm, line.kvbm_replay) if line.kvbm and not line.down else None


def _standing(source: Source, views: Views) -> Standing:
    view = views(_key(source))
    return Standing(BLIND, NOT_ASKED) if view is None else view.standing


def _key(source: Source) -> Key:
    """What its events are followed under; no engine has such an address."""
    return "kvbm " + source.endpoint, source.replay
