"""What the end of a leg says of its engine, and what its client is told of a failure."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from gateway import errors, relay_faults
from gateway.fleet import marks
from gateway.logs import log

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import Group
    from native.relay import Leg


def mark(group: Group, engine: Engine, leg: Leg) -> None:
    """What the leg says of its engine goes into the passive marks."""
    word = marks.of_leg(leg)
    if word == marks.FAILED:
        why = leg.error or f"status {leg.status}"
        group.failed(engine, monotonic(), f"{why} {leg.detail}".rstrip())
    elif word == marks.OK:
        group.succeeded(engine, monotonic())


def fault(ctx: Context, leg: Leg) -> errors.GatewayError:
    """The leg's failure, logged."""
    assert ctx.group is not None and ctx.engine is not None
    words = relay_faults.WORDS.get(leg.error or "", leg.error)
    log.error(
        "request %s: upstream `%s`, engine %s: %s (%s, %s)%s",
        ctx.request_id, ctx.group.name, ctx.engine.address, words, leg.error, leg.phase,
        f": {leg.detail}" if leg.detail else "",
    )  # fmt: skip
    return relay_faults.from_leg(leg.error or "eof", ctx.group.name)
