"""What a prefill engine keeps for nobody is let go: the parameters are delivered to the decode
engine that was to have them, and its leg is cut off, of which that tells the other.

Invariant: it runs without a client, for a bounded time, and nothing waits for it.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from gateway import decode
from gateway.legs import Kept, dress
from gateway.logs import log
from native.relay import Nobody

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.disagg.counts import DisaggCounts
    from gateway.disagg.transfer import Transfer
    from gateway.fleet.engine import Engine
    from gateway.pipeline import Pipeline
    from native.relay import Leg

# How long an engine may take to see what it was told to fetch, before it is cut off.
RELEASE_S = 0.15
REPLY_MAX = 1 << 20


class _Delivery(Kept):
    """Owner of the leg."""

    __slots__ = ("_counts", "_transfer")

    def __init__(self, transfer: Transfer, counts: DisaggCounts) -> None:
        self._transfer = transfer
        self._counts = counts

    def leg_done(self, leg: Leg) -> None:
        """It ends by its time, or by an engine that has no more to say."""
        self._transfer.end("orphaned" if leg.unsent else "released")
        self._counts.add(f"end/{self._transfer.state}")
        if leg.unsent:
            log.info("blocks are kept for nobody: no decode engine could be told (%s)", leg.error)


def deliver(ctx: Context, engine: Engine, transfer: Transfer, pipeline: Pipeline) -> None:
    """Has the engine hear of the blocks, and of nobody wanting them."""
    owner = _Delivery(transfer, pipeline.decisions.two)
    leg = dress(ctx, engine, pipeline.ids.next(), owner, Nobody())
    leg.body = ctx.body
    decode.handed_over(ctx, leg, transfer.take(monotonic()))
    leg.edits = None
    leg.keep_max = REPLY_MAX
    leg.not_after = transfer.deadline
    leg.total_s = RELEASE_S
    leg.start()
