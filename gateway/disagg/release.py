"""What a prefill engine keeps for nobody is let go: a decode engine is sent the parameters with a
request that it must refuse, and tells the other of it. Nothing is fetched, so it is never too late.

Invariant: it runs without a client, for a lease at most, and nothing waits for it; until it ends
the blocks count as pending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engines.vllm import handoff
from gateway.legs import Kept, dress
from gateway.logs import log
from native.relay import Nobody

if TYPE_CHECKING:
    from engines.vllm.handoff import Handed
    from gateway.context import Context
    from gateway.disagg.counts import DisaggCounts
    from gateway.disagg.transfer import Transfer
    from gateway.fleet.engine import Engine
    from native.relay import Leg

REPLY_MAX = 1 << 20


class _Telling(Kept):
    """Owner of the leg."""

    __slots__ = ("_counts", "_transfer")

    def __init__(self, transfer: Transfer, counts: DisaggCounts) -> None:
        self._transfer = transfer
        self._counts = counts

    def leg_done(self, leg: Leg) -> None:
        """Only a refusal lets go; anything else did not come to it."""
        first = self._transfer.prefill
        first.handing.pending -= 1
        self._counts.pend(-1)
        told = leg.error is None and leg.status == handoff.REFUSED
        self._transfer.end("released" if told else "orphaned")
        self._counts.add(f"end/{self._transfer.state}")
        if not told:
            log.info(
                "blocks of %s are kept for nobody until their lease ends: the decode engine said "
                "%s", first.address, leg.error or leg.status,
            )  # fmt: skip


def tell(
    ctx: Context, engine: Engine, handed: Handed, transfer: Transfer, counts: DisaggCounts
) -> None:
    """Has `engine` tell the prefill engine that nobody wants the blocks. They are counted among
    that one's pending ones already."""
    assert ctx.group is not None
    leg = dress(ctx, engine, f"{ctx.request_id}-free", _Telling(transfer, counts), Nobody())
    leg.method, leg.target = b"POST", handoff.RELEASE_PATH
    leg.body = handoff.release_body(handed.raw)
    leg.keep_max = REPLY_MAX
    leg.total_s = ctx.group.conf.disaggregation.lease_s
    leg.start()
