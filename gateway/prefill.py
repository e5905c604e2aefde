"""The prefill phase: the leg that has a prompt computed by an engine which will not answer it.

Invariants: the prompt is the one that the decode engine will be asked for, byte for byte; the
reply is kept, up to a size, and nothing of it reaches the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engines.vllm import handoff
from gateway.legs import dress
from native.relay import Nobody

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.fleet.engine import Engine
    from native.relay import Leg

BLOCK = 16  # tokens, where no engine has said
REPLY_MAX = 8 << 20  # a million blocks
FORCE = {"auto": 0, "always": 1, "never": -1}


def force(ctx: Context) -> int | None:
    """How the pick is to decide: 0 by cost, 1 two engines, -1 one, None where the question does not
    arise; `Routed.why` says why there must be one.
    """
    kv, group = ctx.kv, ctx.group
    assert kv is not None and group is not None
    conf = group.conf.disaggregation
    if not conf.wanted:
        return None
    asked = ctx.policy.get("disaggregate")
    block = max(kv.tokens.block_sizes, default=group.conf.kv.block_size or BLOCK)
    kv.why = _why_one(ctx, block)
    if kv.why:
        return -1
    return FORCE[conf.mode if asked is None else str(asked)]


def _why_one(ctx: Context, block: int) -> str:
    """Why one engine must answer alone; "" = two may. `block`: tokens of an engine's block."""
    kv, found = ctx.kv, ctx.scan
    assert kv is not None
    if ctx.pinned is not None:
        return "pinned"
    if found is None or kv.body is None or not ctx.body or ctx.method != b"POST":
        return "endpoint"
    assert ctx.group is not None
    push = ctx.group.conf.disaggregation.connector == "push"
    why = handoff.why_alone(kv.path, kv.body, found, push)
    if why:
        return why
    if ctx.plan.trust and found.span("kv_transfer_params") is not None:
        return "field"  # its sender does it by itself
    if kv.prompt is None:
        return "unread"
    if kv.reason == "media":
        return "media"
    if kv.prompt.exact and not kv.alone:
        return "prompts"
    return "short" if kv.prompt.tokens < block else ""


def build(ctx: Context, engine: Engine, leg_id: str, owner: object, name: bytes = b"") -> Leg:
    """A leg to `engine` whose reply is kept, not started. It outlives its client. `name`: a member
    for the bodies of both legs."""
    assert ctx.kv is not None and ctx.body is not None
    leg = dress(ctx, engine, leg_id, owner, Nobody())
    leg.body = handoff.prefill_body(ctx.kv.path, ctx.body, name)
    leg.keep_max = REPLY_MAX
    return leg
