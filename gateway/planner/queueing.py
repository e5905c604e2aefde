"""What engines come to by formula: waits, times to the first token and per token, utilisation.

Prefill is a queue M/G/c: c engines, the service times of the trace's own prompts behind what a
cache of their memory would save, waits by Allen and Cunneen (Erlang's C times the mean service over
c(1 - rho), times half the sum of the squared CVs of gaps and service). Answers are a fixed point:
as many run as come in, times their tokens, times the step that so many take. Links are queues M/G/1
at either end. What routing gains or loses beside a perfect queue is not in it: a replay says so.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from native._core import Fit, Trace

LATENCY_S = 0.002  # of a transfer, as the simulator has it
ROUNDS = 200
STUCK = 0.999  # utilisation from which a queue never ends


@dataclass(frozen=True, slots=True)
class Layout:
    """`prefill`, `both` 0: every engine does all of a request. Else so many compute prompts alone,
    so many do `both`, and the others answer; requests are served by two engines wherever they can
    be, with `auto` where it pays. `link_gb_s`: of each engine, 10^9 bytes."""

    engines: int
    prefill: int = 0
    chunk_tokens: int = 8192
    link_gb_s: float = 12.5
    both: int = 0
    auto: bool = False

    @property
    def decode(self) -> int:
        return self.engines - self.prefill - self.both

    @property
    def is_split(self) -> bool:
        """Whether two engines may serve a request."""
        return self.prefill + self.both > 0

    @property
    def has_formula(self) -> bool:
        """Engines that do both beside others, and choices of one or two, are only replayed."""
        return not self.both and not self.auto

    @property
    def roles(self) -> str:
        """A letter for each engine, as the simulator has them."""
        return "p" * self.prefill + "d" * self.decode + "m" * self.both

    @property
    def name(self) -> str:
        if not self.is_split:
            return f"{self.engines} aggregated, chunk {self.chunk_tokens}"
        alone = "".join(f"{n}{of}" for n, of in ((self.prefill, "P"), (self.decode, "D")) if n)
        text = " + ".join([alone] * bool(alone) + [f"{self.both} both"] * bool(self.both))
        return f"{text} (auto)" if self.auto else text


@dataclass(frozen=True, slots=True)
class Traffic:
    """`inputs`, `hits`, `outputs`: tokens of each request; `gap_cv2`: of arrivals, squared."""

    rate: float
    inputs: Sequence[int]
    hits: Sequence[int]
    outputs: Sequence[int]
    gap_cv2: float = 1.0

    @classmethod
    def of(cls, trace: Trace, columns: tuple[Sequence[int], Sequence[int]], memory: int,
           rate: float) -> Traffic:  # fmt: skip
        """`columns`: prompt and answer tokens; `memory`: KV tokens in which prefixes are found."""
        (found,) = trace.hits([memory])
        inputs, outputs = columns
        # The last token is always computed, and with it the 16 of its block.
        pairs = zip(array("I", found), inputs, strict=True)
        return cls(rate, inputs, [min(hit, (n - 1) // 16 * 16) for hit, n in pairs], outputs)


@dataclass(frozen=True, slots=True)
class Predicted:
    """Times in seconds; infinite where a queue never ends. `in_time`: share within the SLO of the
    first token, 1.0 without one."""

    ttft_s: float
    tpot_s: float
    wait_s: float
    transfer_s: float
    prefill_use: float
    link_use: float
    running: float  # answers at once on an engine
    held_tokens: float  # their KV
    in_time: float


def predict(fit: Fit, layout: Layout, traffic: Traffic, ttft_slo_s: float = 0.0) -> Predicted:
    """`fit` of one engine, with the layout's chunk."""
    if layout.prefill:
        return _two_legs(fit, layout, traffic, ttft_slo_s)
    return _together(fit, layout, traffic, ttft_slo_s)


def erlang_c(servers: int, load: float) -> float:
    """The share of arrivals that wait, at a load in Erlang."""
    inverse = 1.0  # Erlang's B by its recursion
    for n in range(1, servers + 1):
        inverse = 1.0 + n / load * inverse
    use = load / servers
    return 1.0 / (1.0 + (1.0 - use) * (inverse - 1.0)) if use < 1 else 1.0


def wait_s(
    rate: float, servers: int, service: Sequence[float], gap_cv2: float
) -> tuple[float, float]:
    """(mean wait, share that waits)."""
    mean = fmean(service)
    load = rate * mean
    if load >= STUCK * servers:
        return math.inf, 1.0
    cv2 = fmean(s * s for s in service) / mean**2 - 1
    waits = erlang_c(servers, load)
    return waits * mean / (servers - load) * (gap_cv2 + cv2) / 2, waits


def _answers(
    fit: Fit, layout: Layout, traffic: Traffic, busy: float, step_s: float
) -> tuple[float, float]:
    """(time per token, answers at once on an engine) where a share `busy` of an engine's time goes
    into steps of `step_s` that compute prompts as well."""
    per_engine = traffic.rate * fmean(traffic.outputs) / layout.decode
    plain_s, slope_s = _step(fit, traffic)
    running = 1.0
    tpot_s = 0.0
    for _ in range(ROUNDS):
        decode_s = plain_s + slope_s * max(0.0, running - 1)
        mixed_s = step_s + slope_s * running
        tpot_s = 1 / (busy / mixed_s + (1 - busy) / decode_s) if busy else decode_s
        following = per_engine * tpot_s
        if abs(following - running) < 1e-6:
            break
        running = following
        if running > 1e5:
            return math.inf, math.inf
    return tpot_s, running


def _step(fit: Fit, traffic: Traffic) -> tuple[float, float]:
    """(of one answer, what each further one adds), in seconds."""
    plain_ms = fit.decode_ms(1, 0)
    slope_ms = (fit.decode_ms(1001, round(1000 * _context(traffic))) - plain_ms) / 1000
    return plain_ms / 1e3, slope_ms / 1e3


def _context(traffic: Traffic) -> float:
    """Tokens of a request in the middle of its answer."""
    return fmean(traffic.inputs) + fmean(traffic.outputs) / 2


def _service(fit: Fit, traffic: Traffic, extra_s: float = 0.0, chunk: int = 1) -> list[float]:
    """Of each prompt; `extra_s`: what running answers add to each of its steps."""
    return [
        fit.prefill_ms(n - hit, hit) / 1e3 + extra_s * -(-(n - hit) // chunk)
        for n, hit in zip(traffic.inputs, traffic.hits, strict=True)
    ]


def _link(fit: Fit, layout: Layout, traffic: Traffic) -> tuple[list[float], float, float]:
    """(transfer of each request, mean wait at both ends, use of the busier end)."""
    byte_s = fit.kv_bytes_per_token / (layout.link_gb_s * 1e9)
    moved = [LATENCY_S + n * byte_s for n in traffic.inputs]
    waits = [
        wait_s(traffic.rate / ends, 1, moved, 1.0)[0] for ends in (layout.prefill, layout.decode)
    ]
    return moved, sum(waits), traffic.rate * fmean(moved) / min(layout.prefill, layout.decode)


def _two_legs(fit: Fit, layout: Layout, traffic: Traffic, slo_s: float) -> Predicted:
    service = _service(fit, traffic)
    queued, waits = wait_s(traffic.rate, layout.prefill, service, traffic.gap_cv2)
    moved, link_wait, link_use = _link(fit, layout, traffic)
    tpot_s, running = _answers(fit, layout, traffic, 0.0, 0.0)
    # It comes in the middle of a step, and its first token at the end of the next.
    rest = link_wait + 1.5 * tpot_s
    own = [s + t + rest for s, t in zip(service, moved, strict=True)]
    return Predicted(
        ttft_s=queued + fmean(own),
        tpot_s=tpot_s,
        wait_s=queued,
        transfer_s=fmean(moved) + link_wait,
        prefill_use=traffic.rate * fmean(service) / layout.prefill,
        link_use=link_use,
        running=running,
        held_tokens=running * _context(traffic),
        in_time=_in_time(own, queued, waits, slo_s),
    )


def _together(fit: Fit, layout: Layout, traffic: Traffic, slo_s: float) -> Predicted:
    chunk = layout.chunk_tokens
    extra_s, tpot_s, running = 0.0, 0.0, 0.0
    service: list[float] = []
    plain_s, slope_s = _step(fit, traffic)
    steps = sum(-(-(n - h) // chunk) for n, h in zip(traffic.inputs, traffic.hits, strict=True))
    for _ in range(8):  # answers slow prompts, and prompts answers
        service = _service(fit, traffic, extra_s, chunk)
        busy = min(STUCK, traffic.rate * fmean(service) / layout.engines)
        step_s = sum(service) / steps - extra_s
        tpot_s, running = _answers(fit, layout, traffic, busy, step_s)
        if not math.isfinite(running):
            break
        extra_s = running * slope_s
    queued, waits = wait_s(traffic.rate, layout.engines, service, traffic.gap_cv2)
    # Where no prompt is computed an answer's step is under way.
    use = traffic.rate * fmean(service) / layout.engines
    own = [s + (1 - min(1.0, use)) * plain_s / 2 for s in service]
    return Predicted(
        ttft_s=queued + fmean(own),
        tpot_s=tpot_s,
        wait_s=queued,
        transfer_s=0.0,
        prefill_use=use,
        link_use=0.0,
        running=running,
        held_tokens=running * _context(traffic),
        in_time=_in_time(own, queued, waits, slo_s),
    )


def _in_time(own: Sequence[float], queued: float, waits: float, slo_s: float) -> float:
    """Waits of those that wait are taken to be exponential."""
    if slo_s <= 0:
        return 1.0
    if not math.isfinite(queued):
        return 0.0
    mean = queued / waits if waits else 0.0
    late = (
        1.0 if s > slo_s else waits * math.exp(-(slo_s - s) / mean) if mean else 0.0 for s in own
    )
    return 1.0 - fmean(late)
