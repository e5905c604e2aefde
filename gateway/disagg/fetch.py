"""The second leg of a request over two engines: what the first left is fetched, once, or let go.

Invariants: parameters go to one leg at most, before their time (`Transfer`); where nobody fetches
them, an engine is told to let go; a prefill counts among its engine's pending ones until its blocks
are fetched, or let go, or nobody can tell.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from gateway import decode
from gateway.disagg.alive import Watch
from gateway.disagg.release import tell
from gateway.logs import log

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.disagg.transfer import State, Transfer
    from gateway.fleet.engine import Engine
    from gateway.pipeline import Pipeline
    from native.relay import Leg

# A decode engine that was sent parameters has so long to see them, before a client that left takes
# the request with it: what an engine finds closed it drops, and nobody would let go.
LINGER_S = 0.15
# A decode engine that cannot reach the other one tries for 5 s, then helps itself.
HANDSHAKE_S = 4.5
LOST = frozenset({"client_gone", "cancelled", "shutdown"})  # nobody waits for an answer any more


class Fetching:
    __slots__ = ("_ctx", "_name", "_pending", "_pipeline", "_watch", "transfer")

    transfer: Transfer

    def __init__(self, pipeline: Pipeline, ctx: Context) -> None:
        self._pipeline = pipeline
        self._ctx = ctx
        self._name = b""  # a member of both bodies: what the engines call the request
        self._pending: Engine | None = None  # who counts this request among its pending ones
        self._watch: Watch | None = None

    def _keep(self, first: Engine) -> None:
        """From now on something of this request is at its prefill engine."""
        self._pending = first
        first.pend(is_more=True)
        self._pipeline.decisions.two.pend(1)

    def _over(self, state: State) -> None:
        """What became of it, counted."""
        self.transfer.end(state)
        self._pipeline.decisions.two.add(f"end/{state}")

    def _let_go(self) -> None:
        """Nothing of this request is kept at its prefill engine any more, as far as we know."""
        if self._pending is not None:
            self._pending.pend(is_more=False)
            self._pending = None
            self._pipeline.decisions.two.pend(-1)

    def holds(self, now: float) -> bool:
        """Whether there is something to be fetched."""
        return self.transfer.fresh(now)

    def follow(self, leg: Leg) -> None:
        """A leg that answers is about to start: it gets the parameters, where there are some."""
        now = monotonic()
        if not self.transfer.fresh(now):
            if self.transfer.state == "expired" and self._ctx.engine is not None:
                self._release(self._ctx.engine)
            return
        decode.handed_over(self._ctx, leg, self.transfer.take(now), self._name)
        leg.not_after = self.transfer.deadline
        leg.linger_s = LINGER_S
        engine = self._ctx.engine
        assert engine is not None
        self._watch = Watch(self._ctx, engine, leg, self.transfer)

    def fetched(self, leg: Leg) -> None:
        """The first output: the blocks are where they are needed."""
        if self.transfer.state != "taken" or leg.status >= 400:
            return
        self._unwatch()
        self._over("used")
        self._let_go()
        first = self.transfer.prefill
        engine = self._ctx.engine
        if engine is None:
            return
        spent_s = monotonic() - leg.t_sent
        if leg.sse:
            self._pipeline.decisions.two.time("fetch", spent_s)
        if spent_s < HANDSHAKE_S:
            first.handing.succeeded(engine.address)
        elif leg.sse and not first.handing.met(engine.address):  # others are late by their length
            self._apart(engine)

    def answered(self, leg: Leg) -> bool:
        """A leg that answers has ended, or never began. True: what follows is seen to."""
        self._unwatch()
        if self.transfer.state == "taken":
            self._ended_taken(leg)
        return False

    def _ended_taken(self, leg: Leg) -> None:
        """It had the parameters."""
        engine = self._ctx.engine
        assert engine is not None
        gone = leg.error in LOST
        if leg.unsent or not leg.t_start:
            self.transfer.give_back(leg)
            if gone or not leg.t_start:
                self._release(engine)
            return
        self._let_go()
        if leg.error is not None and not gone:
            self.transfer.prefill.handing.parted(engine.address)
        if leg.error is None and leg.status < 400:
            self._over("used")
            return
        self._over("released" if gone or leg.status < 500 else "failed")
        if leg.status >= 500 or (leg.error or "").endswith("_timeout"):
            self._apart(engine)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def _release(self, engine: Engine) -> None:
        """Nobody will fetch what is in our hands: `engine` has it let go. Until it has, the prefill
        is a pending one."""
        handed = self.transfer.let_go()
        if handed is None:
            self._let_go()
            return
        if self._pending is None:
            self._keep(self.transfer.prefill)
        self._pending = None
        tell(self._ctx, engine, handed, self.transfer, self._pipeline.decisions.two)

    def _apart(self, engine: Engine) -> None:
        """The two engines did not come together."""
        first = self.transfer.prefill
        if first.handing.failed(engine.address, monotonic()):
            self._pipeline.decisions.two.add("apart")
            log.warning(
                "upstream `%s`: engine %s could not fetch a prompt from %s; they are kept apart "
                "for a while", engine.upstream, engine.address, first.address,
            )  # fmt: skip
