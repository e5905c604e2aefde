"""Two engines asked at once, where the one that computes the prompt writes it to the other.

Both match the request by its id, so the decode leg needs nothing of the prefill leg's reply but
what the engine is called, which an earlier reply has told. Until one has, and where an engine has
another name than before, the legs follow one another, as with pull.

What the usage of the answer says of caches is the prefill engine's word, so the answer is not read
before that has come. It comes a moment before the answer can begin, or after.

Once the decode engine may wait for it the prefill must end: blocks that wait for one that never
comes are not freed by vLLM, not even when their request is aborted. So it goes on whatever becomes
of the other leg. And where the decode engine waits still when the prefill's lease is nearly over,
the prefill is asked for again (`again`), AGAIN_MAX times; then the decode engine computes the
prompt itself.

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
from gateway.disagg import again
from gateway.disagg.fetch import LOST
from gateway.disagg.release import take
from gateway.disagg.transfer import margin
from gateway.disagg.two_legs import TwoLegs
from native.relay import Edits

if TYPE_CHECKING:
    from gateway.disagg.again import Busy
    from gateway.fleet.engine import Engine
    from native.relay import Leg

APART = "peer_failed"  # why a decode leg is ended: the other one failed
AGAIN_MAX = 2  # times that a prefill is asked for again, for one answer


class Pushed(TwoLegs):
    __slots__ = ("_again", "_edits", "_got", "_then", "_timer", "_told")

    _again: int  # how often the prefill was asked for again
    _edits: Edits | None  # of the reply: what its usage shall say, the prefill's reply tells

    _got: Handed | None  # what the prefill's reply handed over
    _told: Peer | None  # what the decode engine was told; None = the legs follow one another
    _timer: asyncio.TimerHandle | None  # until it is looked whether the decode engine waits still
    _then: Callable[[], None] | None  # once the decode leg has ended

    def begin(self, engine: Engine) -> None:
        kv = self._ctx.kv
        assert kv is not None and kv.prefill is not None
        self._then = self._edits = self._got = self._timer = None
        self._again = 0
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
        first = self.leg
        if self.transfer.state != "taken" or first is None:
            return
        self._unwatch()  # who comes too late is written nothing, and nothing wrong
        if self._told is not None:
            counts = max(first.cached_tokens, 0), first.created_tokens
            counts = counts if first.t_end else (-1, -1)
            leg.edits = self._edits = (leg.edits or Edits()).with_usage(*counts)
        if first.t_end:
            self._wait(leg)
        else:
            leg.park(True)

    def _ended(self, leg: Leg) -> None:
        if self._told is None:
            super()._ended(leg)
            return
        handed = self._read(leg, monotonic())
        if handed is not None and self._edits is not None:
            self._edits.count(max(leg.cached_tokens, 0), leg.created_tokens)
        answer, self._got = self._ctx.leg, handed
        if answer is not None:
            answer.park(False)
        if self.transfer.state == "held" and self._owner.over:
            self._release(self.decode)
        elif self.transfer.state != "taken" or answer is None or answer is leg:
            self._let_go()  # the other leg is past needing it, or has ended
        elif handed is None:
            self._stop(answer, partial(self._go_on, leg))
        elif handed.peer != self._told:
            self._stop(answer, partial(self._follow_up, handed))
        elif not answer.t_end:
            self._wait(answer)

    # ---- a decode engine that waits too long ----

    def _wait(self, answer: Leg) -> None:
        """The prefill engine keeps the blocks for a lease from now on."""
        assert self._ctx.group is not None
        lease_s = self._ctx.group.conf.disaggregation.lease_s
        self._unwait()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(lease_s - margin(lease_s), self._late, answer)

    def _unwait(self) -> None:
        if self._timer is not None:  # it would keep the request for a lease
            self._timer.cancel()
            self._timer = None

    def _waits(self, answer: Leg) -> bool:
        """Whether nothing has been heard of it. One that is no stream may be half made."""
        heard = answer.t_first if answer.sse else answer.t_head
        return answer is self._ctx.leg and not heard and not answer.t_end

    def _late(self, answer: Leg) -> None:
        self._timer = None
        if self._waits(answer):
            again.look(self._ctx, self.decode, partial(self._looked, answer))

    def _looked(self, answer: Leg, busy: Busy | None) -> None:
        """What the engine said of itself. Nothing: it stands still, and may go on."""
        if not self._waits(answer):
            return
        if busy is None or not (busy.waits or not busy.runs):
            self._wait(answer)
            return
        if self._again == AGAIN_MAX:
            if answer.sse or not busy.runs:
                self._apart(self.decode)
                self._stop(answer, partial(self._alone, "expired"))
            else:  # it may be another one that waits
                self._wait(answer)
            return
        self._again += 1
        self._pipeline.decisions.two.add("again")
        assert self._ctx.group is not None
        lease_s = self._ctx.group.conf.disaggregation.lease_s
        first = self.transfer.prefill
        then = partial(self._asked_again, answer, busy)
        again.prefill_again(self._ctx, first, self.leg_id, self._name, lease_s, then)

    def _asked_again(self, answer: Leg, busy: Busy, leg: Leg) -> None:
        if not self._waits(answer):
            return
        done = leg.error is None and leg.status == 200
        handed = handoff.read(leg.reply or b"", -1, -1) if done else None
        if handed is None or (self._told is not None and handed.peer != self._told):
            self._again = AGAIN_MAX  # it cannot write, or not there
            self._looked(answer, busy)
        else:
            self._wait(answer)

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
        self._unwait()
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
