"""One request's way over two engines: one computes the prompt, another fetches what came of it and
answers. Owner of the prefill legs; the exchange owns the one that answers.

    begin → prefill leg ──handed over──→ the exchange's leg, with the parameters
                 ├─ refused by the engine ──→ the exchange's leg, alone: its word counts
                 ├─ failed, nothing handed over, too late → another prefill, alone, or an error
                 └─ the client left ──→ what is handed over is let go

A prefill leg has no client of its own. One that ends in mid-prefill is no safe way to stop it: an
engine hears of an abort between two steps, and a prefill that the last step has finished keeps its
blocks for a lease, its reply lost. So a leg whose client left goes on, and is told to nobody,
unless the engine has so much else before it that the abort is certain to come in time.

Invariant: whatever becomes of a prefill, one engine answers in the end, or an error does, or the
client has left, and what was handed over is let go.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Protocol

from engines.vllm import handoff
from gateway import prefill
from gateway.disagg.fetch import LOST, Fetching
from gateway.disagg.pairs import ANY
from gateway.disagg.transfer import Transfer
from gateway.errors import BadReply, InternalError
from gateway.legs import Kept
from gateway.logs import log
from gateway.site import policy
from gateway.verdict import fault, mark

if TYPE_CHECKING:
    from engines.vllm.handoff import Handed
    from gateway.context import Context
    from gateway.errors import GatewayError
    from gateway.fleet.engine import Engine
    from gateway.kv.decisions import Charge
    from gateway.pipeline import Pipeline
    from native.relay import Leg

PREFILLS_MAX = 2  # tries of one request, of those that failed
REDOES_MAX = 1  # answers that failed before a byte
_LOADED = frozenset({408, 429})  # not the request's fault


class Owner(Protocol):
    """The exchange."""

    over: bool

    def answer_at(self, engine: Engine) -> None: ...
    def start(self, engine: Engine) -> None: ...
    def repick(self) -> Engine | None: ...
    def refuse(self, error: GatewayError) -> None: ...


class TwoLegs(Fetching, Kept):
    __slots__ = ("_charge", "_failures", "_owner", "_redoes", "decode", "leg", "leg_id")

    decode: Engine

    def __init__(self, pipeline: Pipeline, owner: Owner, ctx: Context) -> None:
        super().__init__(pipeline, ctx)
        self._owner = owner
        self._charge: Charge | None = None
        self._failures = self._redoes = 0
        self.leg_id = ""  # what both engines know the request by
        self.leg: Leg | None = None  # the last prefill leg

    # ---- the first leg ----

    def begin(self, engine: Engine) -> None:
        """Has the prompt computed where the pick said, for `engine` to answer."""
        leg = self._open(engine)
        self._ctx.leg = leg
        leg.start()

    def _open(self, engine: Engine) -> Leg:
        """The prefill leg, not started, but counted."""
        ctx, now = self._ctx, monotonic()
        kv, group = ctx.kv, ctx.group
        assert kv is not None and kv.prefill is not None and group is not None
        first = engine.team.engines[kv.prefill.place]
        self.decode, ctx.engine, kv.computed = engine, engine, None
        self.transfer = Transfer(first, group.conf.disaggregation.lease_s, now)
        again = bool(ctx.attempts or self._failures)
        self.leg_id = self._pipeline.ids.next() if again else ctx.request_id
        self._name = self._naming(kv.path)
        self._charge = self._pipeline.decisions.prefill_sent(kv, first)
        self._keep(first)
        leg = self.leg = prefill.build(ctx, first, self.leg_id, self, self._name)
        first.handing.asked(leg, kv.prefill.uncached)
        total_s, spent_s = ctx.plan.location.total_timeout_s, now - ctx.request.t0
        leg.total_s = policy.left_s(ctx.policy, total_s, spent_s)
        return leg

    def _naming(self, path: bytes) -> bytes:
        """With pull, engines tell each other what a request is called."""
        return b""

    def left(self) -> None:
        """The client is gone, the exchange over."""
        leg, kv = self.leg, self._ctx.kv
        if leg is None or leg.t_end or kv is None:
            return
        kv.over(monotonic(), -1)  # nobody will answer it
        self._useless(leg)

    def _useless(self, leg: Leg) -> None:
        """Nobody wants the prefill any more: it ends, where the engine hears of that in time."""
        if not leg.t_sent or self.transfer.prefill.handing.far(leg):
            leg.cancel("client_gone")

    def _for_nobody(self, handed: Handed | None, now: float) -> None:
        """A prefill leg has ended whose client left before."""
        if handed is None:
            self._let_go()
            self._over("failed")
        else:
            self.transfer.hold(handed, now)
            self._release(self.decode)

    # ---- what the relay calls, of prefill legs ----

    def leg_done(self, leg: Leg) -> None:
        """Exactly once per leg."""
        try:
            self._ended(leg)
        except Exception:
            log.exception("request %s: fault after a prefill", self._ctx.request_id)
            self._let_go()
            self._owner.refuse(InternalError(request_id=self._ctx.request_id))

    def _ended(self, leg: Leg) -> None:
        now = monotonic()
        handed = self._read(leg, now)
        if self._owner.over:
            self._for_nobody(handed, now)
            return
        if handed is not None:
            self._handed(leg, handed, now)
            return
        self._let_go()
        self._over("failed")
        if leg.error in LOST or leg.error == "total_timeout":
            self._owner.refuse(self._fault(leg))
        else:
            self._go_on(leg)

    def _read(self, leg: Leg, now: float) -> Handed | None:
        """Settles a prefill leg, and reads what it handed over."""
        group, first = self._ctx.group, self.transfer.prefill
        assert group is not None
        done = leg.error is None and leg.status == 200
        self._settle(done)
        first.handing.answered(leg)
        mark(group, first, leg)
        handed = None
        if done:
            handed = handoff.read(leg.reply or b"", leg.cached_tokens, leg.created_tokens)
        if handed is not None:
            first.handing.peer = handed.peer
            two = self._pipeline.decisions.two
            two.time("prefill", leg.t_end - leg.t_start)
            two.add("tokens", max(handed.tokens, 0))
        elif done and first.handing.failed(ANY, now):
            log.warning(
                "upstream `%s`: engine %s hands nothing over: has it a KV connector, and the "
                "role of a producer?", first.upstream, first.address,
            )  # fmt: skip
        return handed

    def _go_on(self, leg: Leg) -> None:
        """Nothing came of a prefill leg, and the client still waits."""
        if leg.error is None and leg.status == 200:
            self._alone("not_handed")
        elif 400 <= leg.status < 500 and leg.status not in _LOADED:
            self._alone("prefill_refused")
        else:
            self._failed(leg)

    def _handed(self, leg: Leg, handed: Handed, now: float) -> None:
        """The prompt is computed, and can be fetched."""
        kv = self._ctx.kv
        assert kv is not None
        self.transfer.hold(handed, now)
        if not self.transfer.fresh(now):
            self._release(self.decode)
            self._alone("expired")
            return
        kv.computed = kv.prefill
        self._owner.answer_at(self.decode)
        self._pipeline.decisions.two.time("second", monotonic() - now)

    def _failed(self, leg: Leg) -> None:
        """The engine did not compute the prompt."""
        kv, group = self._ctx.kv, self._ctx.group
        assert kv is not None and group is not None
        self._failures += 1
        what = group.conf.disaggregation.on_prefill_error
        if what == "fail":
            self._owner.refuse(self._fault(leg))
            return
        kv.spared = (*kv.spared, self.transfer.prefill)
        if what == "retry" and self._failures < PREFILLS_MAX:
            self.decode = self._owner.repick() or self.decode
            if kv.prefill is not None:
                self._owner.start(self.decode)
                return
        self._alone("prefill_failed")

    def _fault(self, leg: Leg) -> GatewayError:
        self._ctx.engine = self.transfer.prefill
        if leg.error is None:
            return BadReply(upstream=self.transfer.prefill.upstream)
        return fault(self._ctx, leg)

    def _alone(self, why: str) -> None:
        """The engine that was to answer computes the prompt, too."""
        kv, team = self._ctx.kv, self.decode.team
        assert kv is not None and kv.prompt is not None and team.scorer is not None
        kv.why, kv.prefill, kv.computed = why, None, None
        now = monotonic()
        kv.over(now, -1)  # it was to be less work
        kv.choice = team.scorer.at(self.decode.place, kv.prompt, now)
        self._owner.answer_at(self.decode)

    # ---- again ----

    def may_redo(self) -> bool:
        """Whether an answer that failed before a byte may be tried anew, from the prefill on."""
        group = self._ctx.group
        assert group is not None
        again = group.conf.disaggregation.on_decode_error == "retry"
        return again and self._redoes < REDOES_MAX

    def redone(self) -> None:
        """It is."""
        self._redoes += 1
        self._pipeline.decisions.two.add("redone")

    def redo(self, leg: Leg) -> bool:
        """Likewise, for a leg that has ended; it is."""
        if leg.error is None or leg.error.startswith("client_") or leg.error in LOST:
            return False
        if not self.may_redo():
            return False
        self.redone()
        return True

    # ---- counts ----

    def found(self) -> tuple[Engine, int]:
        """Who computed the prompt, and how much of it that found in its cache; -1 = not said."""
        return self.transfer.prefill, -1 if self.leg is None else self.leg.cached_tokens

    def _settle(self, done: bool) -> None:
        """The prefill is out of the ledger."""
        charge, kv = self._charge, self._ctx.kv
        if charge is not None and kv is not None:
            self._charge = None
            self._pipeline.decisions.prefill_over(kv, charge, done)

    @property
    def prefill_s(self) -> float:
        """How long the last prefill leg took."""
        return 0.0 if self.leg is None else self.leg.t_end - self.leg.t_start

    def receipt(self) -> bytes:
        """Header lines."""
        if self._ctx.kv is None or self._ctx.kv.computed is None:
            return b""
        return b"x-kvgate-prefill: %b\r\nx-kvgate-prefill-ms: %d\r\n" % (
            self.transfer.prefill.label, self.prefill_s * 1000,
        )  # fmt: skip
