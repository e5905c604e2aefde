"""What lies beside the engines: kvbm daemons that their `server` lines name, followed by their
events as engines are.

Invariants: a daemon named by several lines is followed once; what it holds is credited only while
its events come, and to those engines alone that can load from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gateway.kv.feed import View, Wanted
from gateway.kv.sources import Source
from gateway.kv.trust import BLIND, NOT_ASKED, Standing
from gateway.log_lines import NOTICE
from gateway.logs import log

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from gateway.kv.events import Key
    from native import _core

Views = Callable[["Key"], View | None]

# A state that lasts no longer is not spoken of: at a start, at a reload, after a daemon's restart.
BRIEF_S = 3.0


class Stores:
    """`index` numbers them beside the engines' slots."""

    def __init__(self, index: _core.Index) -> None:
        self._index = index
        self._numbers: dict[Source, int] = {}
        self._reach: dict[int, int] = {}  # slots of engines that are credited with a store
        self._states: dict[Source, tuple[str, float]] = {}  # and since when
        self._logged: dict[Source, str] = {}

    def wanted(self, engines: Iterable[Engine]) -> dict[Key, Wanted]:
        """What is to be followed for them."""
        named = {source for engine in engines if (source := _source(engine)) is not None}
        for source in named - self._numbers.keys():
            self._numbers[source] = self._index.add_store()
        return {_key(source): Wanted(self._numbers[source], source) for source in named}

    def left(self, wanted: Iterable[Wanted]) -> list[int]:
        """Numbers of those that nobody wants any more; they are not ours from now on."""
        kept = {want.source for want in wanted}
        gone = self._numbers.keys() - kept
        for source in gone:
            self._states.pop(source, None)
            self._logged.pop(source, None)
        return [self._numbers.pop(source) for source in gone]

    def look(self, engines: Iterable[Engine], views: Views, now: float) -> None:
        """Credits engines with what their stores hold, where that is known; says what changed."""
        for store in self._numbers:
            self._say(store, _standing(store, views), now)
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

    def _say(self, source: Source, standing: Standing, now: float) -> None:
        """In the log of errors, once it has lasted."""
        state = standing.state
        if self._states.get(source, ("", 0.0))[0] != state:
            self._states[source] = state, now
        lasted = now - self._states[source][1] >= BRIEF_S
        if self._logged.get(source) == state or not lasted:
            return
        self._logged[source] = state
        log.log(
            logging.WARNING if state == BLIND else NOTICE,
            "kvbm %s: trust in what is known of its blocks: %s%s",
            source.endpoint, state, f" ({standing.reason})" if standing.reason else "",
        )  # fmt: skip

    def standing(self, engine: Engine, views: Views) -> Standing | None:
        """None where it has none."""
        source = _source(engine)
        if source is None or source not in self._numbers:
            return None
        return _standing(source, views)

    def status(self, engine: Engine, views: Views) -> dict[str, Any] | None:
        """None where it has none."""
        source, standing = _source(engine), self.standing(engine, views)
        if source is None or standing is None:
            return None
        number = self._numbers[source]
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
