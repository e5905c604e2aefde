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
from gateway.spent import PARTS, moments, parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.conf.model_kv import KvSettings, ServiceLevels
    from gateway.context import Context
    from gateway.spent import Parts

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


class Answer:
    """What of a request's times has SLOs, seconds; None = does not apply. Names and meaning are
    those of gateway.load.measure.Measured, which takes ten times as long to make.
    """

    __slots__ = ("e2el_s", "end", "tpot_s", "ttft_s")

    def __init__(self, end: str, times: Sequence[float]) -> None:
        ttft_s, tpot_s, e2el_s = times[:3]  # in the order of LEVELS
        self.end = end
        self.ttft_s = ttft_s if ttft_s >= 0 else None
        self.tpot_s = tpot_s if tpot_s >= 0 else None
        self.e2el_s = e2el_s if e2el_s >= 0 else None


def set_for(upstream: KvSettings, location: ServiceLevels | None = None) -> Slo:
    """What `slo` says of requests: the location's, else the upstream's; the same NO_SLO wherever
    it says nothing.
    """
    said = upstream if location is None else location
    slo = Slo(said.ttft_s, said.tpot_s, said.e2el_s)
    return NO_SLO if slo == NO_SLO else slo


def slo_of(own: Slo, wishes: Mapping[str, str | float], stream: bool) -> Slo:
    """The SLO of one request: its policy headers', else `own`, its route's. An answer that is no
    stream has no first token: only its end can be late.
    """
    if not stream:
        return Slo(e2el_s=own.e2el_s) if own.e2el_s else NO_SLO
    if not wishes or ("ttft-slo" not in wishes and "tpot-slo" not in wishes):
        return own
    ttft_s, tpot_s = wishes.get("ttft-slo", own.ttft_s), wishes.get("tpot-slo", own.tpot_s)
    return Slo(float(ttft_s), float(tpot_s), own.e2el_s)


def blame(found: Answer, slo: Slo, broken: tuple[str, ...], spent: Parts) -> str:
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


def judge(ctx: Context, times: Sequence[float]) -> None:
    """Writes `broken` and `word` of a request whose `end` is known. `times`: as Leg.times."""
    request, leg, proxied = ctx.request, ctx.leg, ctx.plan.kind == "proxy"
    if ctx.end == "cancelled" or request.method != b"POST" or not (proxied or ctx.turned):
        return
    paged = ctx.sent is not request.target  # an error page has a path of its own
    if not (request.path if paged else ctx.path).endswith(GENERATES):
        return
    answered = proxied and not paged and leg is not None and leg.relayed
    if ctx.end != "completed" or not answered or ctx.group is None:
        ctx.word = "error"
        return
    assert leg is not None
    slo = slo_of(ctx.plan.slos[ctx.group.name], ctx.policy, leg.sse)
    if slo is NO_SLO:
        ctx.word = "good"
        return
    answer = Answer(ctx.end, times)
    broken = misses(answer, slo)  # type: ignore[arg-type]  # it reads no more of it than this
    if not broken:
        ctx.word = "good"
        return
    ctx.broken = broken
    m = moments(ctx)
    ctx.word = "error" if m is None else blame(answer, slo, broken, parts(m))
