"""The last phase: what happened goes into the counts and the access log. Runs once for every
request.

Termination codes are HAProxy's idea: who ended it, and in which phase.

    who    -  nobody, it is complete      C  the client      S  an engine      G  the gateway
    phase  R  request not read    Q  no engine picked     C  connecting
           H  waiting for a head  D  in the reply         -  complete
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.context import CLIENT_LEFT, OWN_PATHS
from gateway.fleet.responses import ID_PREFIX
from gateway.logs import log
from gateway.site.limits import leave

if TYPE_CHECKING:
    from gateway.admit import Gatehouse
    from gateway.context import Context
    from gateway.dashboard.receipts import Receipts
    from gateway.fleet.responses import ResponseMap
    from gateway.kv.decisions import Decisions
    from gateway.stats import Statistics

COMPLETE = "--"
_NOT_LOGGED = ("", "0")  # values of if=
_PHASES = {"connect": "C", "send": "H", "wait": "H", "body": "D", "done": "-"}
_OWN_ENDS = frozenset({"cancelled", "shutdown"})
_WHO = {"client": "G", "gateway": "G", "upstream": "S"}


def termination(ctx: Context) -> str:
    """The two letters. Pure."""
    leg = ctx.leg
    if ctx.status == CLIENT_LEFT:
        if leg is not None and (leg.error or "client_").startswith("client_"):
            return "C" + _PHASES[leg.phase]
        return "CR" if ctx.request.body is None else "CQ"
    if ctx.error is not None:
        # A client that sends no more ends its request itself; other mistakes are refused.
        who = "C" if ctx.error.status == 408 else _WHO[ctx.error.origin]
        if leg is None:
            return "GQ" if who == "S" else who + "R"
        return who + _PHASES[leg.phase]
    if leg is None or leg.error is None:
        return COMPLETE
    if leg.error.startswith("client_"):
        return "C" + _PHASES[leg.phase]
    return ("G" if leg.error in _OWN_ENDS else "S") + _PHASES[leg.phase]


class Recorder:
    __slots__ = ("_gatehouse", "_plain", "decisions", "receipts", "responses", "stats")

    def __init__(
        self,
        gatehouse: Gatehouse,
        stats: Statistics,
        responses: ResponseMap,
        decisions: Decisions,
        receipts: Receipts,
    ) -> None:
        self.receipts = receipts
        self.decisions = decisions
        self._gatehouse = gatehouse
        self.stats, self._plain = stats, stats.plain
        self.responses = responses

    def __call__(self, ctx: Context) -> None:
        """Settles a request that has ended. A fault in a log or count is logged, not passed on."""
        if ctx.inside:
            self._gatehouse.leave()
        if ctx.held:
            leave(ctx)
        leg = ctx.leg
        faultless = leg is not None and leg.error is None and ctx.error is None
        complete = faultless and ctx.status != CLIENT_LEFT
        ctx.termination = COMPLETE if complete else termination(ctx)
        if ctx.path in OWN_PATHS:
            return  # probes are not traffic: they would drown it, and a 503 of theirs is no failure
        if ctx.error is None:
            ctx.error = ctx.first_error  # it is counted and logged, whatever answered instead
        try:
            if not self._plain(ctx):
                self.stats.request(ctx)
            if ctx.kv is not None:
                self.decisions.ended(ctx)
            self.receipts.ended(ctx)
            if leg is not None and ctx.attempts and leg.reply_id.startswith(ID_PREFIX):
                self.responses.put(leg.reply_id, ctx.attempts[-1].engine, ctx.t_end)
            for line, sink, condition in ctx.plan.logs:
                wanted = condition is None or condition(ctx) not in _NOT_LOGGED
                if wanted and line.write(ctx, sink.buffer):
                    sink.filled()
            if ctx.plan.trace is not None:
                ctx.plan.trace.write(ctx)
        except Exception:
            log.exception("request %s: fault while recording it", ctx.request_id)
