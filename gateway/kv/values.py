"""Values of the variables about routing by prompts; absent where a request is not routed by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.disagg.two_legs import TwoLegs
    from gateway.kv.routed import Routed

Getter = Callable[["Context"], "str | None"]


def _of(read: Callable[[Routed], str | None]) -> Getter:
    return lambda ctx: None if ctx.kv is None else read(ctx.kv)


def _chosen(read: Callable[[Routed], str]) -> Getter:
    """What is known once an engine was chosen by the prompt."""
    return lambda ctx: None if ctx.kv is None or ctx.kv.choice is None else read(ctx.kv)


def _runner_up(kv: Routed) -> str:
    """How much more the second best would have cost, in milliseconds."""
    assert kv.choice is not None
    second = kv.choice.runner_up
    return "" if second is None else f"{second[1] - kv.choice.cost_ms:.1f}"


def _handed(read: Callable[[TwoLegs], str]) -> Getter:
    """What is known where another engine computed the prompt."""

    def get(ctx: Context) -> str | None:
        two = ctx.two
        return None if two is None or ctx.kv is None or ctx.kv.computed is None else read(two)

    return get


TABLE: dict[str, Getter] = {
    "disaggregate": _of(lambda kv: kv.why or None),
    "prefill_engine": _handed(lambda two: two.transfer.prefill.address),
    "prefill_time": _handed(lambda two: f"{two.prefill_s:.3f}"),
    "kv_source": _of(lambda kv: kv.source or None),
    "kv_reason": _of(lambda kv: kv.reason or None),
    "kv_prompt_tokens": _of(lambda kv: None if kv.prompt is None else str(kv.prompt.tokens)),
    "kv_tokenize_time": _of(lambda kv: f"{kv.tokenize_s:.6f}"),
    "kv_decide_time": _chosen(lambda kv: f"{kv.decide_s:.6f}"),
    "kv_matched_tokens": _chosen(lambda kv: str(kv.matched)),
    "kv_tier": _chosen(lambda kv: kv.tiers),
    "kv_cost_ms": _chosen(lambda kv: f"{kv.choice.cost_ms:.1f}"),  # type: ignore[union-attr]
    "kv_margin_ms": _chosen(_runner_up),
    "kv_trust": _chosen(lambda kv: kv.trust),
}
