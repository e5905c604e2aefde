"""What the status shows of an engine's cache. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from gateway.kv.feed import View
    from gateway.kv.sources import Source
    from gateway.kv.trust import Standing
    from native import _core


def cache(
    engine: Engine, index: _core.Index, standing: Standing, worst: Standing
) -> dict[str, Any]:
    """How far it is known; `worst`: what the most doubtful worker thinks."""
    return {
        "trust": standing.state,
        "reason": standing.reason,
        "worst": worst.state,
        "worst_reason": worst.reason,
        "block_size": index.block_size(engine.index_slot),
        "tokens": index.tokens(engine.index_slot),
        **_capacity(engine),
    }


def events(source: Source | None, view: View | None, now: float) -> dict[str, Any] | None:
    """What comes from its publisher; None where it is not followed."""
    if source is None or view is None:
        return None
    heard = view.heard_at
    return {
        "endpoint": source.endpoint,
        "replay": source.replay,
        "connected": view.connected,
        "next": view.next,
        "heard_s_ago": None if heard is None else round(now - heard, 3),
        **view.tally.counts(),
    }


def _capacity(engine: Engine) -> dict[str, Any]:
    """How many tokens its cache is taken to hold, and who says so."""
    written = engine.team.group.conf.kv.capacity_tokens
    for tokens, who in ((written, "kv_capacity"), (engine.capacity_tokens, "engine")):
        if tokens:
            return {"capacity_tokens": tokens, "capacity_from": who}
    return {"capacity_tokens": engine.team.kv_tokens, "capacity_from": "profile"}
