"""Where the time of one request went: the parts that follow one another from its arrival to its
last output.

    queue          at the gateway: limits, the pick, engines that failed before the one that answers
    tokenise       to the token ids of its prompt
    prefill_queue  at the engine that computes the prompt, behind the work of others
    prefill        the rest of the time to the first output there
    transfer       from a prompt computed elsewhere to the first output
    decode         from the first output to the last

Invariant: no part is negative, and they are read off what was measured anyhow. An engine does not
say how long a request waited inside: the time there is divided as the model that chose the engine
expected it; where no prompt decided, all of it is `prefill`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.context import Context

PARTS = ("queue", "tokenise", "prefill_queue", "prefill", "transfer", "decode")
Parts = tuple[float, float, float, float, float, float]  # seconds, in the order of PARTS


@dataclass(frozen=True, slots=True)
class Moments:
    """Seconds of one clock. `prefilled`: the engine that computed the prompt for another had done
    so, 0 = none did; `waited`: the expected share of others in the time to the first output, from 0
    to 1; `first` is `last` for an answer that came as a whole.
    """

    arrived: float
    sent: float
    first: float
    last: float
    tokenise_s: float = 0.0
    prefilled: float = 0.0
    waited: float = 0.0


def parts(m: Moments) -> Parts:
    """Pure. The parts of a time that ran backwards (a body still on its way) are 0."""
    before_s = max(m.sent - m.arrived, 0.0)
    tokenise_s = min(m.tokenise_s, before_s)
    computed = min(m.prefilled, m.first) if m.prefilled else m.first
    there_s = max(computed - m.sent, 0.0)
    waiting_s = there_s * m.waited
    return (
        before_s - tokenise_s,
        tokenise_s,
        waiting_s,
        there_s - waiting_s,
        max(m.first - max(computed, m.sent), 0.0),
        max(m.last - m.first, 0.0),
    )


def moments(ctx: Context) -> Moments | None:
    """Of a request that has ended; None where no engine answered it."""
    leg, kv, two = ctx.leg, ctx.kv, ctx.two
    if leg is None or not leg.t_start:
        return None
    first = last = leg.t_end
    if leg.sse and leg.t_first:
        first, last = leg.t_first, leg.t_last
    sent, tokenise_s, prefilled, waited = leg.t_start, 0.0, 0.0, 0.0
    if kv is not None:
        tokenise_s = kv.tokenize_s
        row = None if kv.reader is None else kv.reader.row
        if row is not None and row.ttft_ms > 0:
            waited = min(max(row.queue_ms / row.ttft_ms, 0.0), 1.0)
        if kv.computed is not None and two is not None and two.leg is not None:
            sent, prefilled = two.leg.t_start, two.leg.t_end
    return Moments(ctx.request.t0, sent, first, last, tokenise_s, prefilled, waited)


def shown(ctx: Context) -> str | None:
    """`queue=0.001,prefill=0.250,decode=1.125`: the parts that took time, in seconds."""
    m = moments(ctx)
    if m is None:
        return None
    found = zip(PARTS, parts(m), strict=True)
    return ",".join(f"{name}={took_s:.6f}" for name, took_s in found if took_s > 0) or None
