"""A run -> figures by our definitions, and beside them what other tools call by the same names.

TTFT and E2EL count from the moment a request was due; `_sent` ones from when it left, and
`ttft_choice_sent` ends at the first event with a choice, as `vllm bench serve` has it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.load.client import Reply
from gateway.load.goodput import Goodput, Slo, goodput
from gateway.load.intervals import Spread, quantile, spread
from gateway.load.measure import Asked, Measured, measure
from gateway.load.run import Run

LATE_S = 0.005  # a loop that is so late in one of a hundred looks spoils what it measures
BUSY = 0.8  # share of a core


@dataclass(frozen=True, slots=True)
class Client:
    """How well the client kept its own plan: seconds from due to sent, caps apart; how late its
    loop was; `cpu`: share of a core. `doubtful`: what it measured may be its own slowness.
    """

    send_p50_s: float
    send_p99_s: float
    loop_p99_s: float
    loop_most_s: float
    cpu: float

    @property
    def doubtful(self) -> bool:
        return self.loop_p99_s > LATE_S or self.cpu > BUSY


@dataclass(frozen=True, slots=True)
class Tokens:
    """`asked_in`, `asked_out`: as planned, of completed requests; `counted_*` as the engine says;
    `cached` of -1: it does not say. `uncounted`: answers whose events stand for tokens.
    """

    asked_in: int
    asked_out: int
    counted_in: int
    counted_out: int
    cached: int
    uncounted: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Rates per second of the window, which ends with the last answer. `held`: requests that the
    cap on concurrency held back, and for how long in the mean."""

    offered: int
    completed: int
    failed: dict[str, int]
    samples: dict[str, str]
    cut: int
    stopped: bool
    window_s: float
    offered_rate: float
    concurrency: int
    held: int
    held_mean_s: float
    tokens: Tokens
    spreads: dict[str, Spread | None]
    slo: Slo
    goodput: Goodput | None
    client: Client

    @property
    def request_rate(self) -> float:
        return self.completed / self.window_s

    @property
    def output_rate(self) -> float:
        return self.tokens.counted_out / self.window_s

    @property
    def input_rate(self) -> float:
        return self.tokens.counted_in / self.window_s


def measured(reply: Reply, start_s: float) -> Measured:
    """From `start_s`: its due time, or when it was sent."""
    return measure(Asked(start_s, reply.chunks_s, reply.end, reply.tokens, reply.choice_s))


def summarise(run: Run, slo: Slo) -> Summary:
    replies = run.replies
    window_s = max(run.window_s, 1e-9)
    done = [one for one in replies if one.end == "completed"]
    all_due = [measured(one, one.due_s) for one in replies]
    failed = Counter(one.cause for one in replies if one.end == "failed")
    held = [one.held_s for one in replies if one.held_s]
    samples: dict[str, str] = {}
    for one in replies:
        if one.sample:
            samples.setdefault(one.cause, one.sample)
    return Summary(
        offered=len(replies),
        completed=len(done),
        failed=dict(failed.most_common()),
        samples=samples,
        cut=sum(one.end == "cut" for one in replies),
        stopped=run.stopped,
        window_s=window_s,
        offered_rate=run.offers.rate,
        concurrency=run.most,
        held=run.held,
        held_mean_s=sum(held) / len(held) if held else 0.0,
        tokens=_tokens(run),
        spreads=_spreads(done),
        slo=slo,
        goodput=goodput(all_due, slo, window_s) if slo != Slo() else None,
        client=_client(run),
    )


def _spreads(done: Sequence[Reply]) -> dict[str, Spread | None]:
    due = [measured(one, one.due_s) for one in done]
    sent = [measured(one, one.sent_s) for one in done]
    return {
        "ttft": spread([_own(one.ttft_s) for one in due]),
        "itl": spread([one.itl_s for one in due]),
        "tpot": spread([_own(one.tpot_s) for one in due]),
        "e2el": spread([_own(one.e2el_s) for one in due]),
        "ttft_sent": spread([_own(one.ttft_s) for one in sent]),
        "ttft_choice_sent": spread([_own(one.ttft_choice_s) for one in sent]),
        "e2el_sent": spread([_own(one.e2el_s) for one in sent]),
        "itl_most": spread([[max(one.itl_s)] if one.itl_s else [] for one in due]),
    }


def _own(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _tokens(run: Run) -> Tokens:
    pairs = [
        (offer, reply)
        for offer, reply in zip(run.offers.requests, run.replies, strict=False)
        if reply.end == "completed"
    ]
    cached = [reply.cached_tokens for _, reply in pairs if reply.cached_tokens >= 0]
    return Tokens(
        asked_in=sum(offer.input for offer, _ in pairs),
        asked_out=sum(offer.output for offer, _ in pairs),
        counted_in=sum(max(0, reply.prompt_tokens) for _, reply in pairs),
        counted_out=sum(
            reply.tokens if reply.tokens >= 0 else len(reply.chunks_s) for _, reply in pairs
        ),
        cached=sum(cached) if cached else -1,
        uncounted=sum(reply.tokens < 0 for _, reply in pairs),
    )


def _client(run: Run) -> Client:
    late = sorted(one.sent_s - one.due_s - one.held_s for one in run.replies if one.sent_s >= 0)
    lags = sorted(run.lags_s)
    return Client(
        send_p50_s=quantile(late, 0.5) if late else 0.0,
        send_p99_s=quantile(late, 0.99) if late else 0.0,
        loop_p99_s=quantile(lags, 0.99) if lags else 0.0,
        loop_most_s=lags[-1] if lags else 0.0,
        cpu=run.cpu,
    )
