"""One request from the pick to the record: the legs it takes, one after another. Owner of its legs.

    begin → pick → leg ──done──→ finish
              ↑      └─failed─→ replay on the same engine, next engine, or an error reply → finish

Where another engine computes the prompt, `TwoLegs` comes in between: pick → prefill leg → leg.

Invariants: at most one leg runs that may answer the client; every debit of the ledger is credited
once. Both lanes use this object; the Starlette lane awaits `finished`.
"""

from __future__ import annotations

from random import getrandbits
from time import monotonic
from typing import TYPE_CHECKING

from gateway import decode, errors, prefill, relay_faults
from gateway.context import CLIENT_LEFT, Attempt, Context
from gateway.disagg.push import Pushed
from gateway.disagg.two_legs import TwoLegs
from gateway.ending import Ending
from gateway.logs import log
from gateway.pick import by_prompt, pick, pinned
from gateway.retry import Ended, step
from gateway.site import policy
from gateway.site.plan import ADDED_STATUSES
from gateway.verdict import fault, mark

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from gateway.pipeline import Pipeline
    from native.relay import Leg


class Exchange(Ending):
    __slots__ = ("_replays", "_started", "_successor", "_taken", "_tried")

    def __init__(self, pipeline: Pipeline, ctx: Context) -> None:
        super().__init__(pipeline, ctx)
        self._tried: tuple[Engine, ...] = ()
        self._taken: Engine | None = None  # whom the ledger has a leg of this request at
        self._replays = 0
        self._successor: Engine | None = None  # picked while a discarded reply's head was looked at
        self._started = 0.0

    def _anew(self) -> None:
        self._tried = ()
        self._pipeline.resume(self)

    def begin(self) -> None:
        """Picks an engine and starts the first leg, or answers that there is none."""
        self._started = monotonic()
        engine = self._pick(self._started)
        if engine is None:
            assert self.ctx.group is not None
            self.refuse(errors.NoEngine(upstream=self.ctx.group.name))
        else:
            self.start(engine)

    def start(self, engine: Engine) -> None:
        """Has the engine answer, or first another compute the prompt."""
        ctx = self.ctx
        if ctx.kv is None or ctx.kv.prefill is None:
            self.answer_at(engine)
            return
        if ctx.two is None:
            assert ctx.group is not None
            push = ctx.group.conf.disaggregation.connector == "push"
            ctx.two = (Pushed if push else TwoLegs)(self._pipeline, self, ctx)
        ctx.two.begin(engine)

    def repick(self) -> Engine | None:
        """A new pick, the prompt not having been computed as was wanted."""
        return self._pick(monotonic())

    def _pick(self, now: float) -> Engine | None:
        ctx = self.ctx
        group = ctx.group
        assert group is not None
        if group.successor is not None:  # the plan is older than the engines
            group = ctx.group = group.latest()
        kv = ctx.kv
        if kv is not None:
            if ctx.two is not None and ctx.two.holds(now):
                kv.force = -1  # the prompt is computed; who answers is all there is to say
            else:
                kv.force = prefill.force(ctx)
            engine = by_prompt(ctx, group, self._tried, now, getrandbits(64))
            kv.decide_s += monotonic() - now
            if engine is not None:
                return engine
        if ctx.pinned is not None:
            ctx.how = "pinned"
            return pinned(ctx.pinned, self._tried)
        how = group.conf.balance.method
        if ctx.policy:
            how = policy.method(ctx.policy, how)
        ctx.how = "least_conn" if how == "kv" else how
        key = policy.key(ctx.policy) or (b"" if group.key is None else group.key(ctx))
        return pick(group, key, self._tried, now, getrandbits(64), ctx.how)

    def answer_at(self, engine: Engine) -> None:
        """Starts a leg to an engine; it is in the ledger until `leg_done`, or a fault."""
        ctx = self.ctx
        ctx.engine = self._taken = engine
        if ctx.kv is None or ctx.kv.choice is None:
            self._pipeline.ledger.take(engine.slot)
        else:
            self._pipeline.decisions.sent(ctx.kv, engine)
        leg_id = ctx.request_id if not ctx.attempts else self._pipeline.ids.next()
        if ctx.two is not None and ctx.two.holds(monotonic()):
            leg_id = ctx.two.leg_id
        leg = decode.build(ctx, engine, leg_id, self)
        ctx.leg = leg
        if ctx.two is not None:
            ctx.two.follow(leg)
        if ctx.policy or ctx.attempts or ctx.two is not None:  # what is left for all together
            total_s, spent_s = ctx.plan.location.total_timeout_s, monotonic() - ctx.request.t0
            leg.total_s = policy.left_s(ctx.policy, total_s, spent_s)
        try:
            leg.start()
        except RuntimeError:  # the client left in the meantime
            ctx.leg = ctx.attempts[-1].leg if ctx.attempts else None
            if ctx.two is not None:
                ctx.two.answered(leg)
            self.abandon()

    def abandon(self) -> None:
        super().abandon()
        if self.ctx.two is not None:
            self.ctx.two.left()

    def _give(self, tokens: int = -1) -> None:
        """The leg is out of the ledger, if one is there."""
        kv = self.ctx.kv
        engine, self._taken = self._taken, None
        if engine is not None and (kv is None or kv.ticket is None):
            self._pipeline.ledger.give(engine.slot)
        elif engine is not None and kv is not None:
            self._pipeline.decisions.over(kv, tokens)

    # ---- what the relay calls ----

    def leg_head(self, leg: Leg) -> bool:
        """The reply's head is there, of a status that the plan hooks. False discards the reply."""
        try:
            return self._look(leg)
        except Exception:
            log.exception("request %s: fault while reading a reply's head", self.ctx.request_id)
            return True

    def _look(self, leg: Leg) -> bool:
        ctx = self.ctx
        plan = ctx.plan
        again = ctx.two is not None and leg.status >= 500 and ctx.two.may_redo()
        if again or plan.rules.on_status(leg.status, ctx.request.method):
            self._successor = self._another(leg)
            if self._successor is not None:
                if again and ctx.two is not None:
                    ctx.two.redone()
                return False
        if plan.always_differs and leg.status not in ADDED_STATUSES:
            leg.reply_extra = decode.reply_lines(ctx, False)
        elif plan.added_waits:
            leg.reply_extra = decode.reply_lines(ctx, True)
        return True

    def leg_first(self, leg: Leg) -> None:
        """The first output: the prompt is computed."""
        try:
            self._pipeline.decisions.first(self.ctx)
            if self.ctx.two is not None:
                self.ctx.two.fetched(leg)
        except Exception:
            log.exception("request %s: fault at the first output", self.ctx.request_id)

    def leg_done(self, leg: Leg) -> None:
        """Exactly once per leg."""
        try:
            self._give(leg.completion_tokens)
            if self.ctx.two is None or not self.ctx.two.answered(leg):
                self._ended(leg)
        except Exception:
            log.exception("request %s: fault after a leg", self.ctx.request_id)
            self.refuse(errors.InternalError(request_id=self.ctx.request_id))

    def _ended(self, leg: Leg) -> None:
        ctx = self.ctx
        engine, group = ctx.engine, ctx.group
        assert engine is not None and group is not None
        status = leg.status or relay_faults.status(leg.error)
        ctx.attempts = (*ctx.attempts, Attempt(engine, leg, status))
        if leg.error is None and leg.relayed:
            if (engine.marks.fails and leg.status < 400) or leg.status >= 500:
                mark(group, engine, leg)
            self._finish(leg.reply_status or leg.status, leg.bytes_to_client)
            return
        mark(group, engine, leg)
        self._after_failure(leg, engine)

    def _after_failure(self, leg: Leg, engine: Engine) -> None:
        """The leg failed, or its reply was discarded for another try."""
        ctx = self.ctx
        if leg.error is None:
            self._pipeline.stats.retry("status")
            assert self._successor is not None  # else the reply had been relayed
            self.start(self._successor)
            return
        ended = Ended(
            leg.error, leg.status, leg.relayed, leg.unsent, leg.reused,
            leg.phase == "connect", self._replays,
        )  # fmt: skip
        then = "fail" if self._spent(leg) else step(ctx.plan.rules, ctx.request.method, ended)
        if then == "fail" and not leg.relayed and ctx.two is not None and ctx.two.redo(leg):
            then = "next"
        if then == "replay":
            self._replays += 1
            self._pipeline.stats.replay()
            ctx.attempts = ctx.attempts[:-1]
            self.answer_at(engine)
        elif then == "next":
            self._next(leg)
        elif leg.error == "client_gone":
            self._finish(leg.status if leg.relayed else CLIENT_LEFT, leg.bytes_to_client)
        elif then == "done":
            self._broken(leg)
        else:
            self.refuse(fault(self.ctx, leg))

    def _spent(self, leg: Leg) -> bool:
        """A body that passes through is gone once it was sent; one that never was can go again."""
        return self.ctx.request.body is None and leg.phase != "connect"

    def _another(self, leg: Leg) -> Engine | None:
        """The engine to try next, if the rules and the upstream have one left."""
        now = monotonic()
        ctx = self.ctx
        assert ctx.engine is not None
        if ctx.engine not in self._tried:
            self._tried = (*self._tried, ctx.engine)
        asked = len(self._tried)
        if not ctx.plan.rules.room(asked, now - self._started) or self._spent(leg):
            return None
        if asked > float(ctx.policy.get("retries", asked)):
            return None
        return self._pick(now)

    def _next(self, leg: Leg) -> None:
        engine = self._another(leg)
        if engine is not None:
            self._pipeline.stats.retry(leg.error or "status")
            self.start(engine)
        else:
            self.refuse(fault(self.ctx, leg))

    def _broken(self, leg: Leg) -> None:
        """Part of the reply is with the client, whose stream the relay has ended."""
        self.ctx.error = fault(self.ctx, leg)
        self._finish(leg.status, leg.bytes_to_client)

    def _finish(self, status: int, sent: int) -> None:
        if not self.over:
            self._give()
        super()._finish(status, sent)
