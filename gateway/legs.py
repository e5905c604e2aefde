"""What every leg to an engine carries, whatever it is for: a connection, the client's headers, an
id.

Invariants: the upstream X-Request-Id is always one that the gateway made (NIXL matches requests by
it); nothing of the client's can add a header line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.site.plan import OWN_PREFIX
from native.relay import Leg, RequestPlan, Sink

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.fleet.engine import Engine
    from native.relay import Pool

RANK = b"x-data-parallel-rank"


class Kept:
    """Owner of legs whose replies are kept, whatever their status: nothing reaches a client."""

    __slots__ = ()

    def leg_head(self, leg: Leg) -> bool:
        return True

    def leg_first(self, leg: Leg) -> None:
        """Not asked for."""


def dress(
    ctx: Context, engine: Engine, leg_id: str, owner: object, sink: Sink | None = None
) -> Leg:
    """A leg to `engine` without its body, not started. `sink`: who takes the reply in place of the
    client. Raises nothing: everything was checked when the plan was made.
    """
    plan = ctx.plan
    request = ctx.request
    request_plan = plan.request_plan
    if request.has_prefix(OWN_PREFIX) and (not plan.trust or plan.policies):
        request_plan = RequestPlan([*plan.drop, *_own(ctx)])
    if engine.line.rank >= 0 and plan.trust and request.get(RANK) is not None:
        request_plan = RequestPlan([*plan.drop, *_own(ctx), RANK])
    leg = Leg(
        sink or ctx.client, request, _pool(ctx, engine), request_plan,
        plan.reply_plans[engine.upstream], owner,
    )  # fmt: skip
    leg.target = ctx.target
    leg.host = engine.host if plan.host is None else plan.host(ctx)
    leg.extra = b"x-request-id: %b\r\n%b" % (leg_id.encode(), plan.set_lines.render(ctx))
    if engine.line.rank >= 0:
        leg.extra += b"x-data-parallel-rank: %d\r\n" % engine.line.rank
    return leg


def _pool(ctx: Context, engine: Engine) -> Pool:
    plan = ctx.plan
    if plan.secure is None:
        pool = engine.pools[plan.tls]
        assert pool is not None  # opened for every scheme that a location speaks
        return pool
    return engine.secured(plan.secure.context, plan.secure.name(ctx))


def _own(ctx: Context) -> list[bytes]:
    """Headers that are meant for the gateway, where they are dropped."""
    if ctx.plan.trust and not ctx.plan.policies:
        return []
    return [name for name, _ in ctx.request.headers if name.startswith(OWN_PREFIX)]
