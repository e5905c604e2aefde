"""How a request ends, whoever ends it: an answer of the gateway's own, the record, and whoever
waits for it.

Invariant: `_finish` runs exactly once, whatever happens, and it is the only way out.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from gateway import decode, errors
from gateway.context import CLIENT_LEFT, Context
from gateway.over import OVER
from gateway.site.plan import ADDED_STATUSES
from gateway.site.turn import turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from gateway.pipeline import Pipeline


class Ending:
    __slots__ = ("_pipeline", "_timer", "_waiter", "ctx", "over")

    def __init__(self, pipeline: Pipeline, ctx: Context) -> None:
        self.ctx = ctx
        self.over = False
        self._pipeline = pipeline
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, seconds: float, then: Callable[[Self], None]) -> None:
        """Goes on later, unless the client leaves before."""
        self._timer = asyncio.get_running_loop().call_later(seconds, then, self)

    def refuse(self, error: errors.GatewayError, close: bool = False) -> None:
        """Answers with an error of the gateway's own."""
        if self.over or (not close and self.turn(error.status, error)):
            return
        # Its traceback would keep the frames, and with them the request, until a collection.
        self.ctx.error = error.with_traceback(None)
        body = error.body(anthropic=self.ctx.path.endswith(b"/messages"))
        self.answer(error.status, error.headers(), body, close)

    def turn(self, status: int, error: errors.GatewayError | None) -> bool:
        """Whether `error_page` answers."""
        if not self.ctx.plan.error_pages or turn(self, status, error) is None:
            return self.over
        self._anew()
        return True

    def _anew(self) -> None:
        """Another location answers instead."""
        raise NotImplementedError

    def answer(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, close: bool = False
    ) -> None:
        """A whole reply made here, and the end."""
        ctx = self.ctx
        headers += decode.reply_headers(ctx, status in ADDED_STATUSES)
        ctx.client.reply(ctx.request, status, headers, body, close)
        self._finish(status, 0 if ctx.request.method == b"HEAD" else len(body))

    def cut(self, status: int) -> None:
        """The connection ends without a reply."""
        client = self.ctx.client
        self._finish(status, 0)
        client.cut()

    def answered(self, status: int, sent: int) -> None:
        """An ASGI endpoint has answered by itself; nothing happens where the exchange is over."""
        self._finish(status, sent)

    def abandon(self) -> None:
        """The client left while no leg ran."""
        self._finish(CLIENT_LEFT, 0)

    def _finish(self, status: int, sent: int) -> None:
        """The one way out: the record, and whoever waits."""
        if self.over:
            return
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        ctx = self.ctx
        ctx.status = status
        ctx.bytes_sent = sent
        ctx.t_end = monotonic()
        # The request would keep the exchange, which keeps the request and its body.
        ctx.request.context = OVER
        self._pipeline.record(ctx)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def finished(self) -> None:
        """Returns when the exchange is over; cancelling it ends the leg that runs."""
        if self.over:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            if self.ctx.leg is not None:
                self.ctx.leg.cancel()
            raise
