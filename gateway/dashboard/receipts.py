"""Recent decisions of this worker, some of them: plain values, so that no request is kept.

Invariants: at most KEPT, at most one in EVERY_S seconds; for all other requests this costs one
comparison at their end.
"""

from __future__ import annotations

from collections import deque
from time import time
from typing import TYPE_CHECKING, Any

from gateway.kv.routed import TIERS

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.fleet.engine import Engine
    from gateway.kv.routed import Routed
    from native._core import Choice

KEPT = 40
EVERY_S = 0.2
SHOWN_MAX = 80  # characters of what a client has written
Document = dict[str, Any]


class Receipts:
    __slots__ = ("_next", "kept")

    def __init__(self) -> None:
        self.kept: deque[Document] = deque(maxlen=KEPT)  # the newest last
        self._next = 0.0

    def ended(self, ctx: Context) -> None:
        """A request is over."""
        if ctx.t_end < self._next or ctx.engine is None:
            return
        self._next = ctx.t_end + EVERY_S
        self.kept.append(written(ctx, time()))


def written(ctx: Context, at: float) -> Document:
    """One decision as the page shows it; `at`: seconds of the wall clock."""
    leg, engine = ctx.leg, ctx.engine
    assert engine is not None
    out: Document = {
        "at": round(at, 3),
        "id": ctx.request_id,
        "upstream": engine.upstream,
        "model": ctx.model[:SHOWN_MAX],
        "engine": engine.address,
        "policy": ctx.how,
        "attempts": len(ctx.attempts),
        "status": ctx.status,
        "termination": ctx.termination,
        "total_ms": _ms(ctx.t_end - ctx.request.t_head),
        "ttft_ms": None,
        "output_tokens": None,
        "cached_tokens": None,
        "kv": None if ctx.kv is None else _kv(ctx.kv, engine),
    }
    if leg is not None and leg.relayed:
        if leg.sse and leg.t_first:
            out["ttft_ms"] = _ms(leg.t_first - ctx.request.t0)
        out["output_tokens"] = _known(leg.completion_tokens)
        out["cached_tokens"] = _known(leg.cached_tokens)
    return out


def _kv(kv: Routed, engine: Engine) -> Document:
    out: Document = {
        "prompt": kv.source or kv.reason,
        "prompt_tokens": None if kv.prompt is None else kv.prompt.tokens,
        "tokenize_ms": _ms(kv.tokenize_s),
        "decide_us": round(kv.decide_s * 1e6, 1),
        "disaggregate": kv.why or None,
        "prefill": _address(kv.prefill, engine),
    }
    choice = kv.reader
    if choice is not None:
        row = choice.row
        second = choice.runner_up
        out |= {
            "matched_tokens": choice.matched,
            "tiers": {tier: n for tier in TIERS if (n := getattr(row, tier))},
            "cost_ms": round(choice.cost_ms, 1),
            "margin_ms": None if second is None else round(second[1] - choice.cost_ms, 1),
            "expected_ttft_ms": round(choice.ttft_ms, 1),
            "terms_ms": {name: round(ms, 1) for name, ms in row.terms if round(ms, 1)},
            "trust": kv.trust,
        }
    return out


def _address(choice: Choice | None, engine: Engine) -> str | None:
    """Of a choice among the engines that `engine` is in a team with."""
    engines = engine.team.engines
    if choice is None or choice.place >= len(engines):
        return None
    return engines[choice.place].address


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _known(count: int) -> int | None:
    return count if count >= 0 else None
