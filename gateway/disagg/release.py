"""What a prefill engine keeps for nobody is let go: a decode engine is sent the parameters with a
request that it must refuse, and tells the other of it. Nothing is fetched, so it is never too late.
With push it is sent one for a single token instead, in time, and is written what it asks for.

Invariant: it runs without a client, for a lease at most, and nothing waits for it; until it ends
the blocks count as pending.
"""

from __future__ import annotations

from time import monotonic
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

    __slots__ = ("_counts", "_status", "_transfer")

    def __init__(self, transfer: Transfer, counts: DisaggCounts, status: int) -> None:
        self._transfer = transfer
        self._counts = counts
        self._status = status  # of the reply that says it is done

    def leg_done(self, leg: Leg) -> None:
        """Any other reply is of an engine that did not come to it."""
        first = self._transfer.prefill
        first.pend(is_more=False)
        self._counts.pend(-1)
        told = leg.error is None and leg.status == self._status
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
    owner = _Telling(transfer, counts, handoff.REFUSED)
    leg = dress(ctx, engine, f"{ctx.request_id}-free", owner, Nobody())
    leg.method, leg.target = b"POST", handoff.RELEASE_PATH
    leg.body = handoff.release_body(handed.raw)
    _start(ctx, leg)


def take(
    ctx: Context, engine: Engine, leg_id: str, name: bytes, transfer: Transfer, counts: DisaggCounts
) -> None:
    """Has `engine` take the blocks for nobody, under the id of the prefill. Counted as for `tell`.
    Raises Spent."""
    assert ctx.kv is not None and ctx.body is not None
    leg = dress(ctx, engine, leg_id, _Telling(transfer, counts, 200), Nobody())
    raw = transfer.take(monotonic()).raw
    leg.body = handoff.shortest_body(ctx.kv.path, ctx.body, raw, name)
    leg.not_after = transfer.deadline
    _start(ctx, leg)


def _start(ctx: Context, leg: Leg) -> None:
    assert ctx.group is not None
    leg.keep_max = REPLY_MAX
    leg.total_s = ctx.group.conf.disaggregation.lease_s
    leg.start()
