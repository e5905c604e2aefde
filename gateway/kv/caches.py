"""What lies in the engines' caches, as this worker knows it: who is followed by events, how far
each picture is believed, and what is done when it is not.

Invariants: an engine keeps its slot of the index for as long as its address is in a kv_aware
upstream, over reloads; whatever changes the standing of an engine is logged once for the whole
gateway; nothing here waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from gateway.fleet.ledger import place
from gateway.kv import shown
from gateway.kv.events import Key, Subscriber
from gateway.kv.feed import View, Wanted
from gateway.kv.sources import Found, written
from gateway.kv.stores import Stores
from gateway.kv.trust import BLIND, CONTRADICTS, EXACT, HEALING, NOT_ASKED, STATES, Standing, Trust
from gateway.log_lines import NOTICE
from gateway.logs import log

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import EngineTable, Group
    from gateway.kv.board import Board
    from gateway.kv.event_counts import EventCounts

LOOK_S = 0.5  # how often standings are looked at
AGAIN_S = 5.0  # a server whose publisher is gone is asked again that often
BRIEF_S = 1.0  # what is over by then is not logged
OFF = "kv_events off"
WORDS = {state: at for at, state in enumerate(STATES, 1)}  # on the board, the worst the highest

Again = Callable[[str, str], None]


class Caches:
    """`again(upstream, server)`: that server should be asked where it publishes."""

    def __init__(
        self, table: EngineTable, board: Board, counts: EventCounts, again: Again | None = None
    ) -> None:
        self.again = again
        self.index = table.index
        self._table = table
        self._board = board
        self._counts = counts
        self._subscriber = None if table.index is None else Subscriber(table.index)
        self._stores = None if table.index is None else Stores(table.index)
        self._found: dict[Key, Found] = {}  # by upstream and server
        self._engines: dict[Key, Engine] = {}  # those with a slot
        self._said: dict[Key, tuple[Standing, float]] = {}  # as on the board; since when so
        self._logged: dict[Key, str] = {}
        self._asked: dict[Key, float] = {}
        self._wanted: dict[Key, Wanted] = {}
        self._timer: asyncio.TimerHandle | None = None

    # ---- life ----

    def start(self) -> None:
        """Begins to follow and to look; needs a running loop."""
        self.apply()
        self._turn()

    def _turn(self) -> None:
        self.look(monotonic())
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._turn)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._subscriber is not None:
            self._subscriber.close()

    def apply(self) -> None:
        """The engine table has changed."""
        former = self._engines
        self._engines = there = {(e.upstream, e.address): e for _, e in self._aware()}
        servers = {(e.upstream, e.line.server) for e in there.values()}
        for server in self._found.keys() - servers:
            del self._found[server]
        self._follow()
        left = set()
        for key, engine in former.items():
            if there.get(key) is engine:
                continue
            left.add(engine.index_slot)
            engine.index_slot = -1
            if key not in there:
                self._board.forget(place(engine.slot))
                for known in (self._said, self._logged):
                    known.pop(key, None)
        for slot in left - self._slots():
            assert self._subscriber is not None
            assert self._stores is not None
            self._stores.forget(slot)
            self._subscriber.release(slot)  # behind `follow`: nothing writes to it

    def hear(self, upstream: str, server: str, found: Found) -> None:
        """Where a server publishes."""
        self._found[upstream, server] = found
        self._follow()

    def _aware(self) -> Iterator[tuple[Group, Engine]]:
        for group in self._table.groups.values():
            if group.conf.kv.aware:
                yield from ((group, engine) for engine in group.engines if engine.index_slot >= 0)

    def _follow(self) -> None:
        """Follows all engines whose events are to be had and are believed."""
        if self._subscriber is None or self._stores is None:
            return
        now = monotonic()
        engines = [engine for group, engine in self._aware() if group.conf.kv.events != "off"]
        stores = self._stores.wanted(engines)
        wanted: dict[Key, Wanted] = dict(stores)
        for group, engine in self._aware():
            trust = engine.trust
            if group.conf.kv.events == "off":
                trust.source_why = OFF
                continue
            source, why = written(engine.line), ""
            if source is None:
                found = self._found.get((engine.upstream, engine.line.server))
                source, why = (None, NOT_ASKED) if found is None else found.of(engine.line)
            trust.source_why = why
            if source is not None and now >= trust.drift.until and not engine.line.down:
                wanted[_feed(engine)] = Wanted(engine.index_slot, source)
        if wanted == self._wanted:
            return
        former, self._wanted = self._wanted, wanted
        self._subscriber.follow(wanted)
        for number in self._stores.left(stores.values()):
            self._subscriber.release(number)
        slots = self._slots()
        for key in former.keys() - wanted.keys():
            if former[key].slot in slots:
                self._subscriber.clear(former[key].slot)

    def _slots(self) -> set[int]:
        """Of engines that are there. One server in several upstreams has one slot."""
        return {engine.index_slot for engine in self._engines.values()}

    # ---- what others tell and ask ----

    def computes(self, engine: Engine, tokens: int) -> None:
        """So many tokens of a prompt were new to it: of a whole block its events should tell."""
        if self.index is not None and engine.index_slot >= 0:
            size = self.index.block_size(engine.index_slot) or 16
            engine.trust.filled += tokens >= size

    def observe(self, engine: Engine, predicted: int, actual: int, now: float) -> bool:
        """A prompt's matched tokens as predicted, and as the engine itself counted them. True: they
        have just proved to disagree.
        """
        trust = self._fresh(engine)
        state = trust.standing(now).state
        if self.index is None or state not in (EXACT, HEALING):
            return False
        if state == HEALING and predicted < actual:
            trust.drift.forget()  # what is missing is known to be
            return False
        size = self.index.block_size(engine.index_slot) or 16
        if trust.drift.observe(predicted, actual, size, now):
            self._follow()
            return True
        if state == HEALING and trust.drift.agrees and self._subscriber is not None:
            self._subscriber.complete(_feed(engine))
            trust.forgive()
        return False

    def tokens(self, engine: Engine, ok: bool, reason: str = "", usable: bool = True) -> None:
        """Whether the gateway's token ids are the engine's; `usable`: equal among themselves."""
        if ok and engine.trust.tokens_why:
            self._rejoin(engine)
        engine.trust.tokens_why = "" if ok else reason or "its token ids are not the gateway's"
        engine.trust.unusable = not usable

    def standing(self, engine: Engine) -> Standing:
        return self._fresh(engine).standing(monotonic())

    def state(self, engine: Engine) -> tuple[str, str]:
        """exact, healing, approximate or blind, and why."""
        standing = self.standing(engine)
        return standing.state, standing.reason

    def assumes(self, engine: Engine) -> bool:
        """Whether its cache is followed by decisions."""
        return self.standing(engine).state not in (EXACT, HEALING)

    def worst(self, engine: Engine) -> Standing:
        """What the most doubtful worker thinks of it; a state of "" where none does."""
        word, reason = self._board.highest(place(engine.slot))
        return Standing(STATES[word - 1], reason) if 0 < word <= len(STATES) else Standing("")

    def store(self, engine: Engine) -> Standing | None:
        """How far its kvbm daemon is known to this worker; None where it has none."""
        return None if self._stores is None else self._stores.standing(engine, self._view)

    def _rejoin(self, engine: Engine) -> None:
        """What decisions put into its picture goes, and its events are followed from the start."""
        if self._subscriber is not None:
            self._subscriber.rejoin(_feed(engine))

    def _fresh(self, engine: Engine) -> Trust:
        if self._subscriber is not None:
            view = self._view(_feed(engine))
            engine.trust.stream = None if view is None else view.standing
        return engine.trust

    # ---- looking ----

    def look(self, now: float) -> None:
        """What has changed since the last time."""
        refollow = False
        for group, engine in self._aware():
            trust = self._fresh(engine)
            view = self._view(_feed(engine))
            if view is not None and self.index is not None:
                trust.short(self.index.short(engine.index_slot))
                was = trust.silent or trust.restless
                quiet_s = group.conf.kv.quiet_s
                trust.silent = trust.silence.look(trust.filled, view.heard_at, now, quiet_s)
                trust.restless = trust.unrest.look(view.tally.restarts, now)
                if was and not (trust.silent or trust.restless):
                    self._rejoin(engine)
                if not view.connected:
                    self._ask_again(engine, now)
            elif trust.drift.until and now >= trust.drift.until:
                trust.drift.until, refollow = 0.0, True
            self._say(engine, trust.standing(now), now)
        if refollow:
            self._follow()
        if self._stores is not None:
            self._stores.look((engine for _, engine in self._aware()), self._view, now)
        if self._subscriber is not None and self.index is not None:
            stats = self.index.stats()
            self._counts.say(self._subscriber.totals(), stats.evicted)
            self._counts.say_index(stats.bytes, stats.pairs)

    def _ask_again(self, engine: Engine, now: float) -> None:
        key = engine.upstream, engine.line.server
        if self.again is not None and now - self._asked.get(key, 0.0) >= AGAIN_S:
            self._asked[key] = now
            self.again(*key)

    def _say(self, engine: Engine, standing: Standing, now: float) -> None:
        """On the board, and where no other worker has said so, in the log."""
        key, state = (engine.upstream, engine.address), standing.state
        said, since = self._said.get(key, (None, now))
        if said != standing:
            since = since if said is not None and said.state == state else now
            self._said[key] = standing, since
            self._board.say(place(engine.slot), WORDS[state], standing.reason)
        brief = state == HEALING or standing.reason == NOT_ASKED  # mostly over soon
        if self._logged.get(key) == state or (brief and now - since < BRIEF_S):
            return
        self._logged[key] = state
        if not self._board.speak(place(engine.slot), WORDS[state]):
            return
        broken = state == BLIND or standing.reason == CONTRADICTS
        log.log(
            logging.WARNING if broken else NOTICE,
            "upstream `%s`: trust in what is known of the KV cache of engine %s: %s%s",
            engine.upstream, engine.address, state,
            f" ({standing.reason})" if standing.reason else "",
        )  # fmt: skip

    # ---- what it shows ----

    def status(self, engine: Engine) -> dict[str, Any] | None:
        """Of the worker that answers, but for `worst*`; None where nothing is followed."""
        if engine.index_slot < 0 or self.index is None or self._stores is None:
            return None
        standing, worst = self.standing(engine), self.worst(engine)
        if worst.state in ("", standing.state):
            worst = standing  # its own is fresher
        key = _feed(engine)
        source = self._wanted[key].source if key in self._wanted else None
        return {
            **shown.cache(engine, self.index, standing, worst),
            "events": shown.events(source, self._view(key), monotonic()),
            "kvbm": self._stores.status(engine, self._view),
        }

    def _view(self, key: Key) -> View | None:
        return None if self._subscriber is None else self._subscriber.view(key)


def _feed(engine: Engine) -> Key:
    """What its events are followed under: the same for one server in several upstreams."""
    return engine.address, str(engine.index_slot)
