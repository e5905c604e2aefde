"""The primaries or the backups of an upstream, as picks see them.

Invariant: the masks of a team say at any time which of its engines may be picked, so that a pick
need not look at each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from native._core import Ask, EngineSet, Fit, HashRing, RoundRobin, Scorer

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import Group
    from gateway.fleet.ledger import Ledger
    from native._core import Index


class Team:
    """The primaries or the backups of an upstream, in file order. `mask`: one byte per engine, 1
    = may be picked to answer; engines at `max_conns` are left out later, by the ledger's counts.
    `prefills`: likewise, to compute a prompt that another answers.
    """

    __slots__ = (
        "ask", "engines", "group", "kv_tokens", "load", "mask", "prefills", "recheck", "ring",
        "robin", "scorer",
    )  # fmt: skip

    def __init__(self, engines: Iterable[Engine], ledger: Ledger, former: Team | None) -> None:
        self.engines = tuple(engines)
        self.mask = self.prefills = bytes(len(self.engines))
        self.recheck = math.inf  # when a benched engine may be tried again
        weights = [engine.line.weight for engine in self.engines]
        limits = [engine.line.max_conns for engine in self.engines]
        self.load = EngineSet(ledger.core, [e.slot for e in self.engines], weights, limits)
        self.ring = HashRing([engine.address for engine in self.engines], weights)
        # What weighs prompts, and what it is asked by requests that ask for nothing: kv_aware only.
        self.scorer: Scorer | None = None if former is None else former.scorer
        self.ask: Ask | None = None
        self.kv_tokens = 0  # in the cache of an engine that does not say how many
        if former is None:
            self.robin = RoundRobin(weights)
        else:
            origins = [former.engines.index(e) if e in former.engines else -1 for e in self.engines]
            self.robin = former.robin.rebuilt(weights, origins)
        self.group: Group
        for place, engine in enumerate(self.engines):
            engine.team = self
            engine.place = place

    def seat(self, ledger: Ledger, index: Index | None) -> None:
        """Makes what weighs prompts anew: engines, or what is known of them, have changed. What it
        has learnt of engines that stay is kept.
        """
        kv, former = self.group.conf.kv, self.scorer
        self.scorer = None
        if not kv.aware or not self.engines or index is None:
            return
        fit = Fit(kv.profile, list(kv.fit), kv.chunk_tokens)
        self.kv_tokens = kv.capacity_tokens or fit.kv_tokens
        self.scorer = Scorer(
            ledger.core,
            index,
            [e.slot for e in self.engines],
            [e.index_slot for e in self.engines],
            [e.line.weight for e in self.engines],
            [e.line.max_conns for e in self.engines],
            [fit] * len(self.engines),
            [kv.capacity_tokens or e.capacity_tokens for e in self.engines],
            [e.context_tokens for e in self.engines],
            former,
        )
        self.ask = Ask(
            overlap_weight=kv.overlap_weight,
            ttft_slo_ms=kv.ttft_s * 1000,
            tpot_slo_ms=kv.tpot_s * 1000,
        )

    def refresh(self, now: float) -> None:
        """Makes the mask anew, from every engine's state."""
        self.recheck = math.inf
        mask = bytearray(len(self.engines))
        prefills = bytearray(len(self.engines))
        for place, engine in enumerate(self.engines):
            line = engine.line
            up = not line.down and not line.drain and not engine.gone and engine.healthy
            if up and engine.marks.benched and now <= engine.marks.until:
                up = False
                self.recheck = min(self.recheck, engine.marks.until)
            mask[place] = up and engine.role != "prefill"
            prefills[place] = up and engine.role != "decode"
        self.mask, self.prefills = bytes(mask), bytes(prefills)

    def may_prefill(self, now: float) -> bytes:
        """The engines that may be given one more prompt to compute for another."""
        if now > self.recheck:
            self.refresh(now)
        most = self.group.conf.disaggregation.pending
        if not most or all(engine.pending < most for engine in self.engines):
            return self.prefills
        pairs = zip(self.prefills, self.engines, strict=True)
        return bytes(up and engine.pending < most for up, engine in pairs)

    def forgive(self, now: float) -> None:
        """All are benched: nginx's rule, the marks are wiped and every engine is tried again."""
        for engine in self.engines:
            engine.marks.reset()
        self.refresh(now)
