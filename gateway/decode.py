"""The decode leg: what the chosen engine is sent, and what is added to its reply.

Invariant: the body is the client's bytes but for the spans that `route` cut, and the parameters of
a hand-over, which stand in front.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engines.vllm import handoff
from gateway.legs import dress
from native.relay import Edits

if TYPE_CHECKING:
    from engines.vllm.handoff import Handed
    from gateway.context import Context
    from gateway.fleet.engine import Engine
    from native.relay import Leg

CLIENT_ID_MAX = 128


def build(ctx: Context, engine: Engine, leg_id: str, owner: object) -> Leg:
    """A leg to `engine` that answers the client, not started."""
    leg = dress(ctx, engine, leg_id, owner)
    leg.body = ctx.body
    leg.edits = ctx.edits
    leg.reply_extra = reply_lines(ctx, True)
    leg.hear_first = ctx.kv is not None and ctx.kv.ticket is not None
    if ctx.turned:
        leg.method = ctx.method
        leg.reply_status = ctx.forced
    return leg


def handed_over(ctx: Context, leg: Leg, handed: Handed, name: bytes = b"") -> None:
    """Makes it a leg whose prompt has been computed elsewhere. `name`: as for `prefill.build`."""
    assert ctx.body is not None and ctx.scan is not None
    leg.body = handoff.decode_body(ctx.body, ctx.scan.insert_at, handed.raw, name)
    leg.hear_first = True
    if handed.cached_tokens >= 0 or handed.created_tokens > 0:
        counts = handed.cached_tokens, handed.created_tokens
        leg.edits = (ctx.edits or Edits()).with_usage(*counts)


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
        if ctx.two is not None:
            lines += ctx.two.receipt()
    return lines


def reply_headers(ctx: Context, all_of_them: bool) -> list[tuple[bytes, bytes]]:
    """The same as (lower-case name, value)."""
    pairs = (line.partition(b": ") for line in reply_lines(ctx, all_of_them).split(b"\r\n")[:-1])
    return [(name.lower(), value) for name, _, value in pairs]
