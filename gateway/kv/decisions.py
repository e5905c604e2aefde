"""What the gateway remembers of its decisions: the load they bring, and what they will leave in an
engine's cache.

    sent     the charge goes into the ledger; siblings of a burst see the blocks as there already
    first    the prompt is computed: its charge is discharged, and engines whose events cannot be
             followed are taken to hold it
    over     a leg is done with: what its engine holds is what its events say
    ended    what the engine said it found is held against what was expected

Invariant: every `sent` has its `over`, whatever became of the leg.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.disagg.counts import DisaggCounts
    from gateway.fleet.engine import Engine
    from gateway.kv.counts import KvCounts
    from gateway.kv.routed import Routed
    from native._core import Index, Ticket
    from native.relay import Leg

SIBLINGS_S = 5.0  # how long a decision counts as if its blocks were there
# Replies of these count the tokens of the whole prompt.
COUNTED = frozenset({b"/v1/chat/completions", b"/v1/completions"})
SETTLE_S = 0.5  # after its request's end: then the engine's events, which are late, are the truth


class Trust(Protocol):
    """How far the picture of an engine's cache is right."""

    def state(self, engine: Engine) -> tuple[str, str]:
        """exact, healing, approximate or blind, and why."""

    def assumes(self, engine: Engine) -> bool:
        """Whether its cache is followed by decisions, as its events are not."""

    def computes(self, engine: Engine, tokens: int) -> None:
        """So many tokens of a prompt were new to it."""

    def observe(self, engine: Engine, predicted: int, actual: int, now: float) -> bool:
        """An engine said what it found; times are monotonic seconds. True: this has just proved
        that it is something else than what is known.
        """


@dataclass(frozen=True, slots=True)
class Charge:
    """What a prefill leg stands for in the ledger and the index while it runs."""

    engine: Engine
    ticket: Ticket
    prediction: int


class Decisions:
    def __init__(
        self, index: Index | None, trust: Trust, counts: KvCounts, two: DisaggCounts
    ) -> None:
        self.two = two
        self._index = index
        self._trust = trust
        self._counts = counts

    def trust(self, engine: Engine) -> tuple[str, str]:
        """exact, healing, approximate or blind, and why."""
        return self._trust.state(engine)

    def sent(self, kv: Routed, engine: Engine) -> None:
        """A leg is about to start."""
        now = monotonic()
        assert kv.choice is not None and kv.prompt is not None
        if kv.ticket is None:
            kv.ticket = kv.choice.start(now)
        else:  # counted in since its prefill was asked for elsewhere
            kv.ticket.sent(now)
        kv.trust = self._trust.state(engine)[0] if kv.prompt.exact else "approximate"
        kv.prediction = self._expected(kv, engine, now)

    def first(self, ctx: Context) -> None:
        """The first output of a reply."""
        kv, engine, leg = ctx.kv, ctx.engine, ctx.leg
        if kv is None or kv.ticket is None or engine is None or leg is None:
            return
        if leg.sse:  # another reply's first byte comes after its last token
            kv.ticket.first(monotonic())
        if leg.status == 200:
            self._computed(kv, engine)

    def prefill_sent(self, kv: Routed, engine: Engine) -> Charge:
        """A leg is about to start that only computes the prompt; who will answer expects it."""
        now = monotonic()
        assert kv.prefill is not None and kv.prompt is not None and kv.choice is not None
        kv.ticket = kv.choice.start(now)
        return Charge(engine, kv.prefill.start(now), self._expected(kv, engine, now))

    def prefill_over(self, kv: Routed, charge: Charge, done: bool) -> None:
        """It has ended; `done`: the prompt is computed."""
        now, engine = monotonic(), charge.engine
        self._settle(charge.prediction, now)
        if done:
            charge.ticket.first(now)
            charge.ticket.end(now, 1)
            self._computed(kv, engine)
        else:
            charge.ticket.end(now, None)
            kv.over(now, -1)

    def over(self, kv: Routed, tokens: int) -> None:
        """A leg has ended; `tokens` of its answer, -1 = not known."""
        now = monotonic()
        kv.over(now, tokens)
        self._settle(kv.prediction, now)
        kv.prediction = -1

    def ended(self, ctx: Context) -> None:
        """A request has ended."""
        kv, leg = ctx.kv, ctx.leg
        assert kv is not None
        cached, engine = -1, ctx.engine
        if kv.computed is not None and ctx.two is not None:
            engine, cached = ctx.two.found()
        elif leg is not None and leg.error is None and leg.status == 200:
            cached = leg.cached_tokens
            if kv.source == "local" and kv.alone and kv.path in COUNTED and leg.prompt_tokens > 0:
                assert kv.prompt is not None
                engine = ctx.attempts[-1].engine
                kv.tokens.counted(engine, kv.prompt.tokens, leg.prompt_tokens)
        self._counts.request(kv, cached)
        self._computes(kv, leg, cached, engine)
        if kv.why:
            self.two.add(f"why/{kv.why}")
        # Behind others in a queue, or beside siblings that compute the same, a prompt rightly finds
        # something else than lay there when it was sent: that says nothing of the events.
        row = None if kv.reader is None else kv.reader.row
        at_once = row is not None and not row.waiting and not row.predicted
        if cached >= 0 and kv.comparable and at_once and engine is not None and row is not None:
            # What lies below the device is loaded only where that pays, as the engine sees it.
            expected = min(max(cached, row.device), kv.matched)
            wrong = self._trust.observe(engine, expected, cached, monotonic())
            if wrong and kv.source == "local":
                kv.tokens.suspect(engine)

    def _computes(self, kv: Routed, leg: Leg | None, cached: int, engine: Engine | None) -> None:
        """An engine was given something to compute, of which its events should tell."""
        if engine is None or leg is None or leg.error is not None or leg.status != 200:
            return
        tokens = leg.prompt_tokens if kv.prompt is None else kv.prompt.tokens
        self._trust.computes(engine, tokens - max(cached, kv.matched))

    # ---- the index, where there is one ----

    def _expected(self, kv: Routed, engine: Engine, now: float) -> int:
        """A prompt is on its way there: the prediction's number, -1 = none."""
        if self._index is None or engine.index_slot < 0:
            return -1
        assert kv.prompt is not None
        return self._index.predict(engine.index_slot, kv.prompt, now, SIBLINGS_S)

    def _computed(self, kv: Routed, engine: Engine) -> None:
        """A prompt lies there; where no events tell of it, that is believed."""
        prompt = kv.prompt
        if self._index is None or engine.index_slot < 0 or prompt is None:
            return
        if not prompt.exact or self._trust.assumes(engine):
            holds = engine.capacity_tokens or engine.team.kv_tokens
            self._index.assume(engine.index_slot, prompt, holds)

    def _settle(self, prediction: int, now: float) -> None:
        if self._index is not None and prediction >= 0:
            self._index.settle(prediction, now + SETTLE_S)
