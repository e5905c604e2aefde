"""Two engines asked at once, where the one that computes the prompt writes it to the other.

Both match the request by its id, so the decode leg needs nothing of the prefill leg's reply but
what the engine is called, which an earlier reply has told. Until one has, and where an engine has
another name than before, the legs follow one another, as with pull.

What the usage of the answer says of caches is the prefill engine's word, as far as that comes
before the usage does.

Once the decode engine may wait for it the prefill must end: blocks that wait for one that never
comes are not freed by vLLM, not even when their request is aborted. So it goes on whatever becomes
of the other leg.

Invariant: a prefill that ends when no decode engine was asked, and none will be, is let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from engines.vllm import handoff
from engines.vllm.handoff import Handed, Peer
from gateway.disagg.fetch import LOST
from gateway.disagg.release import take
from gateway.disagg.two_legs import TwoLegs
from native.relay import Edits

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from native.relay import Leg

APART = "peer_failed"  # why a decode leg is ended: the other one failed


class Pushed(TwoLegs):
    __slots__ = ("_edits", "_got", "_then", "_timer", "_told")

    _edits: Edits | None  # of the reply: what its usage shall say, the prefill's reply tells

    _got: Handed | None  # what the prefill's reply handed over
    _told: Peer | None  # what the decode engine was told; None = the legs follow one another
    _timer: asyncio.TimerHandle | None  # until the decode engine is not waited for
    _then: Callable[[], None] | None  # once the decode leg has ended

    def begin(self, engine: Engine) -> None:
        kv = self._ctx.kv
        assert kv is not None and kv.prefill is not None
        self._then = self._edits = self._got = self._timer = None
        self._told = engine.team.engines[kv.prefill.place].handing.peer
        if self._told is None:
            super().begin(engine)
            return
        leg = self._open(engine)
        raw = self._told.params(self.leg_id)
        self.transfer.hold(Handed(raw, self._told, -1, -1, -1), monotonic())
        kv.computed = kv.prefill
        leg.start()
        self._owner.answer_at(engine)

    def _naming(self, path: bytes) -> bytes:
        return handoff.naming(path, self.leg_id)

    def left(self) -> None:
        if self._told is None:  # else the leg that answers hears of it
            super().left()

    def follow(self, leg: Leg) -> None:
        super().follow(leg)
        if self._told is not None and self.transfer.state == "taken":
            leg.edits = self._edits = (leg.edits or Edits()).with_usage(-1, -1)

    def _ended(self, leg: Leg) -> None:
        if self._told is None:
            super()._ended(leg)
            return
        handed = self._read(leg, monotonic())
        if handed is not None and self._edits is not None:
            self._edits.count(max(leg.cached_tokens, 0), leg.created_tokens)
        answer, self._got = self._ctx.leg, handed
        if self.transfer.state == "held" and self._owner.over:
            self._release(self.decode)
        elif self.transfer.state != "taken" or answer is None or answer is leg:
            self._let_go()  # the other leg is past needing it, or has ended
        elif handed is None:
            self._stop(answer, partial(self._go_on, leg))
        elif handed.peer != self._told:
            self._stop(answer, partial(self._follow_up, handed))
        elif not answer.t_end:
            assert self._ctx.group is not None
            patience_s = self._ctx.group.conf.disaggregation.lease_s
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(patience_s, self._waited, answer)

    def _waited(self, answer: Leg) -> None:
        """The blocks were written a lease ago. Seen on vLLM 0.32: an engine without other work that
        does not hear of it, and waits for ever; it computes the prompt itself then."""
        heard = answer.t_first if answer.sse else answer.t_head
        if answer is self._ctx.leg and not heard and not answer.t_end:
            self._stop(answer, partial(self._alone, "expired"))

    def _stop(self, answer: Leg, then: Callable[[], None]) -> None:
        """The decode engine waits for what will not come."""
        if answer.relayed:
            answer.cancel("eof")
            return
        self._then = then
        answer.cancel(APART)

    def _follow_up(self, handed: Handed) -> None:
        """It was told a wrong name: now it is told the right one."""
        kv, first = self._ctx.kv, self.transfer.prefill
        assert kv is not None and self._ctx.group is not None
        self._told = handed.peer
        kv.computed = kv.prefill
        self.transfer = self.transfer.anew(handed)
        self._keep(first)
        self._owner.answer_at(self.decode)

    def answered(self, leg: Leg) -> bool:
        super().answered(leg)
        if self._timer is not None:  # it would keep the request for a lease
            self._timer.cancel()
            self._timer = None
        first, then = self.leg, self._then
        if leg.error == APART and then is not None:
            self._then = None
            kv = self._ctx.kv
            if kv is not None:
                kv.computed = None
            then()
            return True
        if self._told is not None and first is not None and not first.t_end:
            gone = leg.error in LOST or not leg.t_start
            if gone and (leg.unsent or not leg.t_start):  # no decode engine waits for it
                self._useless(first)
        return False

    def _release(self, engine: Engine) -> None:
        """No decode engine has been asked: one takes what was computed, if anything was."""
        if self._told is not None and self.leg is not None and not self.leg.t_end:
            return  # `_ended` comes
        late = not self.transfer.fresh(monotonic())
        if late or (self._told is not None and self._got is None):
            self._let_go()
            self._over("orphaned" if late else "failed")
            return
        if self._got is not None:
            self.transfer = self.transfer.anew(self._got)
        if self._pending is None:
            self._keep(self.transfer.prefill)
        self._pending = None
        counts = self._pipeline.decisions.two
        take(self._ctx, engine, self.leg_id, self._name, self.transfer, counts)
