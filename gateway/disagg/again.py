"""What is asked besides while a decode engine waits for blocks that another is to write to it.

A prefill engine of vLLM 0.32 forgets a prompt when its lease ends. A decode engine that names its
blocks only then, because it stood still or had a queue, is told nothing and waits for ever; if its
request is aborted it keeps the blocks for ever. But the name stays known at the prefill engine, so
the same prefill under the same id, mostly out of its cache, is written where the first should have
been, and the request goes on. (Push heartbeats, which were to extend the lease, name a request by
what the decode engine was told, before the prefill engine has given it its name.)

Invariant: nothing asked here reaches a client, and nobody waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway import prefill
from gateway.legs import Kept, dress
from native.relay import Nobody

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.fleet.engine import Engine
    from native.relay import Leg

METRICS = b"/metrics"
METRICS_MAX = 4 << 20
LOOK_S = 5.0
# Gauges of vLLM. Deferred: what waits for blocks from elsewhere, or for a grammar.
_SAMPLE = re.compile(
    rb'^vllm:num_requests_(running|waiting_by_reason)\{([^}]*)\} ([0-9.e+]+)\s*$', re.MULTILINE
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Busy:
    """What an engine does, in requests."""

    runs: float
    waits: float  # for blocks


def read(metrics: bytes) -> Busy | None:
    """Of vLLM's exposition; None where it does not say."""
    found = _SAMPLE.findall(metrics)
    runs = [float(value) for name, _, value in found if name == b"running"]
    waits = [float(value) for _, labels, value in found if b'reason="deferred"' in labels]
    return Busy(sum(runs), sum(waits)) if runs and waits else None


class _Asked(Kept):
    """Owner of a leg of which only the reply counts."""

    __slots__ = ("_then",)

    def __init__(self, then: Callable[[Leg], None]) -> None:
        self._then = then

    def leg_done(self, leg: Leg) -> None:
        self._then(leg)


def look(ctx: Context, engine: Engine, then: Callable[[Busy | None], None]) -> None:
    """Asks an engine what it does. None = it did not say."""

    def told(leg: Leg) -> None:
        then(read(leg.reply or b"") if leg.error is None and leg.status == 200 else None)

    leg = dress(ctx, engine, f"{ctx.request_id}-look", _Asked(told), Nobody())
    leg.method, leg.target, leg.body = b"GET", METRICS, b""
    leg.keep_max = METRICS_MAX
    leg.total_s = LOOK_S
    leg.start()


def prefill_again(ctx: Context, first: Engine, leg_id: str, name: bytes, total_s: float,
                  then: Callable[[Leg], None]) -> None:  # fmt: skip
    """Has a prompt computed once more, by who did it, under the same id and `name`."""
    leg = prefill.build(ctx, first, leg_id, _Asked(then), name)
    leg.total_s = total_s
    leg.start()
