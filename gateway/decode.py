"""The decode leg: what the chosen engine is sent, and what is added to its reply.

Invariants: the body is the client's bytes but for the spans that `route` cut; the upstream
X-Request-Id is always one that the gateway made (NIXL matches requests by it); nothing of the
client's can add a header line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.plan import OWN_PREFIX
from native.relay import Leg, RequestPlan

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.engine import Engine

CLIENT_ID_MAX = 128
RANK = b"x-data-parallel-rank"


def build(ctx: Context, engine: Engine, leg_id: str, owner: object) -> Leg:
    """A leg to `engine`, not started. Raises nothing: everything was checked when the plan was
    made.
    """
    plan = ctx.plan
    request = ctx.request
    request_plan = plan.request_plan
    if request.has_prefix(OWN_PREFIX) and (not plan.trust or plan.policies):
        request_plan = RequestPlan([*plan.drop, *_own(ctx)])
    if engine.line.rank >= 0 and plan.trust and request.get(RANK) is not None:
        request_plan = RequestPlan([*plan.drop, *_own(ctx), RANK])
    if plan.secure is None:
        pool = engine.pools[plan.tls]
        assert pool is not None  # opened for every scheme that a location speaks
    else:
        pool = engine.secured(plan.secure.context, plan.secure.name(ctx))
    leg = Leg(ctx.client, request, pool, request_plan, plan.reply_plans[engine.upstream], owner)
    leg.target = ctx.target
    leg.host = engine.host if plan.host is None else plan.host(ctx)
    leg.extra = b"x-request-id: %b\r\n%b" % (leg_id.encode(), plan.set_lines.render(ctx))
    if engine.line.rank >= 0:
        leg.extra += b"x-data-parallel-rank: %d\r\n" % engine.line.rank
    leg.body = ctx.body
    leg.edits = ctx.edits
    leg.reply_extra = reply_lines(ctx, True)
    leg.hear_first = ctx.kv is not None and ctx.kv.ticket is not None
    if ctx.turned:
        leg.method = ctx.method
        leg.reply_status = ctx.forced
    return leg


def _own(ctx: Context) -> list[bytes]:
    """Headers that are meant for the gateway, where they are dropped."""
    if ctx.plan.trust and not ctx.plan.policies:
        return []
    return [name for name, _ in ctx.request.headers if name.startswith(OWN_PREFIX)]


def client_id(ctx: Context) -> bytes:
    """The id echoed to the client: its own where it sent a decent one, else the gateway's."""
    sent = ctx.request.get(b"x-request-id")
    if (
        sent
        and len(sent) <= CLIENT_ID_MAX
        and sent.isascii()
        and sent.decode("ascii").isprintable()
    ):
        return bytes(sent)
    return ctx.request_id.encode()


def reply_lines(ctx: Context, all_of_them: bool) -> bytes:
    """Header lines added to the reply. `all_of_them`: those without `always` too."""
    plan = ctx.plan
    added = plan.added if all_of_them else plan.added_always
    lines = b"x-request-id: %b\r\n%b" % (client_id(ctx), added.render(ctx))
    if plan.receipt and ctx.engine is not None:
        lines += b"x-kvgate-engine: %b\r\nx-kvgate-attempts: %d\r\n" % (
            ctx.engine.label, len(ctx.attempts) + (ctx.error is None),
        )  # fmt: skip
        lines += b"x-kvgate-policy: %b\r\nx-kvgate-queue-ms: %d\r\n" % (
            ctx.how.encode(), ctx.delay_s * 1000,
        )  # fmt: skip
        if ctx.kv is not None:
            lines += ctx.kv.receipt()
    return lines


def reply_headers(ctx: Context, all_of_them: bool) -> list[tuple[bytes, bytes]]:
    """The same as (lower-case name, value)."""
    pairs = (line.partition(b": ") for line in reply_lines(ctx, all_of_them).split(b"\r\n")[:-1])
    return [(name.lower(), value) for name, _, value in pairs]
