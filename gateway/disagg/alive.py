"""Whether a decode engine that was given parameters in time has heard of them in time, too.

A request may lie in the socket of an engine that stands still. Once that goes on, behind the lease,
it fetches what lies there by then: a wrong answer with status 200, and wrong blocks in its cache
under the right name. A request that it finds closed it drops. So an engine of which nothing was
heard when the lease is nearly over is asked whether it lives, and where it does not answer, the
request is taken back.

Invariant: a leg whose engine may not have read it is closed before the lease ends.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from gateway.disagg.transfer import margin
from gateway.legs import Kept, dress
from native.relay import Nobody

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.disagg.transfer import Transfer
    from gateway.fleet.engine import Engine
    from native.relay import Leg

HEALTH = b"/health"
REPLY_MAX = 64 << 10


class Watch(Kept):
    """Over one leg that carries parameters, until `stop`."""

    __slots__ = ("_ctx", "_engine", "_leg", "_margin_s", "_timer")

    def __init__(self, ctx: Context, engine: Engine, leg: Leg, transfer: Transfer) -> None:
        assert ctx.group is not None
        self._ctx, self._engine, self._leg = ctx, engine, leg
        self._margin_s = margin(ctx.group.conf.disaggregation.lease_s)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(transfer.deadline - monotonic(), self._ask)

    def stop(self) -> None:
        self._timer.cancel()

    @property
    def _silent(self) -> bool:
        return not self._leg.t_head and not self._leg.t_end

    def _ask(self) -> None:
        """What the engine is asked now it reads behind the request, if at all."""
        if not self._silent:
            return
        leg = dress(self._ctx, self._engine, f"{self._ctx.request_id}-alive", self, Nobody())
        leg.method, leg.target, leg.body = b"GET", HEALTH, b""
        leg.keep_max = REPLY_MAX
        leg.total_s = self._margin_s / 2
        leg.start()

    # ---- what the relay calls, of the question ----

    def leg_done(self, leg: Leg) -> None:
        """Any answer will do; it took the other request, too."""
        if leg.error is not None and self._silent:
            self._leg.cancel("first_byte_timeout")
