"""What is said of one request that has ended: how, what was measured of it, which SLOs it broke,
and which part of its time broke them.

Definitions are those of gateway/load: what they call a request's due time is its arrival here, head
and body read. Invariant: a request counts by one word, `good` or the cause of a miss, or, where it
does not count, by none; so attainment = good / (good + misses), exact.

A request counts where it asks for generated text and its client has waited. Cause of a miss: of the
broken SLO that was exceeded by the largest factor, the part (gateway/spent.py) that has most of the
time over. A part's share of that is what its absence would have saved, so it is the longest part.
Where nothing was late but the answer is missing or without output, it is `error`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.context import CLIENT_LEFT
from gateway.load.goodput import Slo, misses
from gateway.load.measure import Measured
from gateway.spent import PARTS, moments, parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.context import Context
    from gateway.load.measure import End
    from gateway.spent import Parts
    from native.relay import Leg

ENDS = ("completed", "refused", "limited", "overloaded", "failed", "cancelled")
LEVELS = ("ttft", "tpot", "e2el")
CAUSES = (*PARTS, "error")
WORDS = ("", "good", *CAUSES)
# Paths, whatever stands before them, whose answers are generated text.
GENERATES = (b"/chat/completions", b"/completions", b"/responses", b"/messages")
NO_SLO = Slo()
_FIRST = PARTS.index("decode")  # parts before the first output
_OVERLOADED = frozenset({503, 529})


def end_of(status: int, termination: str) -> str:
    """One of ENDS. `status`: what the client was told; `termination`: as gateway/record.py has it.

    refused: 4xx; limited: 429; overloaded: 503 and 529; failed: any other error, and a reply that
    broke off; cancelled: by the client.
    """
    if status == CLIENT_LEFT or termination[0] == "C":
        return "cancelled"
    if status == 429:
        return "limited"
    if status in _OVERLOADED:
        return "overloaded"
    if 400 <= status < 500:
        return "refused"
    return "completed" if termination == "--" and 0 < status < 500 else "failed"


def measured(leg: Leg | None, arrived: float, end: str) -> Measured | None:
    """What is measured of an answer; None where there is none. An answer that came as a whole has
    no first token, and its end is the last.
    """
    if leg is None or not leg.relayed or leg.status >= 300:
        return None
    how: End = end if end in ("completed", "cancelled") else "failed"  # type: ignore[assignment]
    tokens = leg.completion_tokens
    counted = tokens < 0
    if not leg.sse:
        return Measured(how, None, None, (), None, leg.t_end - arrived, max(tokens, 0), counted)
    first, choice = leg.t_first, leg.t_choices[0]
    if counted:
        tokens = leg.chunks
    choice_s = choice - arrived if choice else None
    if not first:
        return Measured(how, None, choice_s, (), None, None, tokens, counted)
    last = leg.t_last
    tpot_s = (last - first) / (tokens - 1) if tokens > 1 else None
    return Measured(how, first - arrived, choice_s, (), tpot_s, last - arrived, tokens, counted)


def slo_of(own: Slo, wishes: Mapping[str, str | float]) -> Slo:
    """The SLO of one request: its policy headers', else its upstream's."""
    if not wishes or ("ttft-slo" not in wishes and "tpot-slo" not in wishes):
        return own
    ttft_s, tpot_s = wishes.get("ttft-slo", own.ttft_s), wishes.get("tpot-slo", own.tpot_s)
    return Slo(float(ttft_s), float(tpot_s), own.e2el_s)


def blame(found: Measured, slo: Slo, broken: tuple[str, ...], spent: Parts) -> str:
    """One of CAUSES, for SLOs that were broken. Pure."""
    factor, worst = 1.0, ""
    for name, took_s, limit_s in (
        ("ttft", found.ttft_s, slo.ttft_s),
        ("tpot", found.tpot_s, slo.tpot_s),
        ("e2el", found.e2el_s, slo.e2el_s),
    ):
        if name in broken and took_s is not None and took_s / limit_s > factor:
            factor, worst = took_s / limit_s, name
    if not worst:
        return "error"
    if worst == "tpot":
        return "decode"
    concerned = spent[:_FIRST] if worst == "ttft" else spent
    return PARTS[concerned.index(max(concerned))]


def judge(ctx: Context, found: Measured | None) -> None:
    """Writes `broken` and `word` of a request whose `end` is known."""
    if ctx.end == "cancelled" or ctx.request.method != b"POST" or ctx.plan.kind != "proxy":
        return
    if not ctx.path.endswith(GENERATES):
        return
    if ctx.end != "completed" or found is None or ctx.group is None:
        ctx.word = "error"
        return
    slo = slo_of(ctx.plan.slos[ctx.group.name], ctx.policy)
    if ctx.leg is not None and not ctx.leg.sse:
        slo = Slo(e2el_s=slo.e2el_s) if slo.e2el_s else NO_SLO
    broken = misses(found, slo)
    if not broken:
        ctx.word = "good"
        return
    ctx.broken = broken
    m = moments(ctx)
    ctx.word = "error" if m is None else blame(found, slo, broken, parts(m))
