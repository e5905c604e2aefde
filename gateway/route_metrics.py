"""Metrics of routes (a server's location and the upstream it came to), declared once, and the
collector that fills them: requests, tokens, times, and how many requests kept their SLOs.

Invariant: definitions are those of docs/goodput.md; every count is a sum over all workers, made
where a request ends. A series goes with its route, and there are as many as the configuration has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.metrics import Declared, add, buckets, families
from gateway.slo import CAUSES, ENDS, LEVELS, WORDS
from gateway.stats import LANES, OUTCOMES

if TYPE_CHECKING:
    from gateway.stats import Names, Statistics
    from native._core import SeriesSnapshot

ROUTE = ("server", "location", "upstream")


def _times(name: str, help: str) -> Declared:
    return Declared(f"kvgate_{name}_seconds", "histogram", ROUTE, help, "seconds")


def _count(name: str, help: str, *labels: str, unit: str = "") -> Declared:
    return Declared(f"kvgate_{name}_total", "counter", (*ROUTE, *labels), help, unit)


OFFERED = Declared(
    "kvgate_offered_requests_total", "counter", ("server", "location"),
    "requests that came, counted when their head was read",
)  # fmt: skip
REQUESTS = _count(
    "requests", "requests that ended, by status class and termination code (-- = complete)",
    "status", "outcome",
)  # fmt: skip
FINISHED = _count(
    "finished_requests",
    "requests that ended: completed, refused (4xx), limited (429), overloaded (503, 529), failed"
    " (another error, or the reply broke off), cancelled (by the client)", "end",
)  # fmt: skip
GOOD = _count(
    "good_requests",
    "requests for generated text that completed and kept every SLO that was set for them",
)
MISSES = _count(
    "slo_misses",
    "requests for generated text that were not good and not cancelled, by what broke it: the part"
    " of their time that has most of the time over, or error", "cause",
)  # fmt: skip
BROKEN = _count(
    "slo_broken", "SLOs that completed requests broke; one request may have broken several", "slo"
)
LANE = _count("lane_requests", "requests by lane", "lane")
DURATION = _times("request_duration", "from the request's head to the end of its reply")
TTFT = _times(
    "time_to_first_token",
    "from the request (head and body read) to the first event with output, streams only",
)
TTFO = _times(
    "time_to_first_output",
    "the same to the first output that is not reasoning",
)
TPOT = _times(
    "time_per_output_token",
    "from the first output to the last, divided by the tokens after the first; one value per stream"
    " of two tokens or more (what aiperf and genai-perf call inter token latency)",
)
ITL = _times(
    "inter_token_latency",
    "gaps between two events with output, one value per gap (as vllm bench serve and vLLM call it)",
)
E2EL = _times(
    "end_to_end_latency",
    "from the request to the last output of a stream, or to the end of another answer; completed"
    " ones only",
)
CHOICE_TTFT = _times(
    "vllm_bench_time_to_first_token",
    "as vllm bench serve has it: to the first event with a choice, be it without output",
)
CHOICE_TPOT = _times(
    "vllm_bench_time_per_output_token",
    "as vllm bench serve has it: from the first to the last event with a choice, per token after"
    " the first",
)
CHOICE_E2EL = _times(
    "vllm_bench_end_to_end_latency",
    "as vllm bench serve has it: to the last event with a choice",
)
CHUNKS = _count("chunks", "events with output passed to clients")
PROMPT_TOKENS = _count("prompt_tokens", "prompt tokens, where the engine said", unit="tokens")
COMPLETION_TOKENS = _count("completion_tokens", "tokens made, where the engine said", unit="tokens")
CACHED_TOKENS = _count(
    "cached_tokens", "prompt tokens found in the engine's cache, where it said", unit="tokens"
)
GOOD_TOKENS = _count("good_tokens", "tokens made for good requests", unit="tokens")
METERED = _count("metered_requests", "requests whose token counts were known")
UNCOUNTED = _count(
    "uncounted_requests",
    "streams whose tokens the engine did not count, so that their events stand for them",
)
RECEIVED = _count("received_bytes", "request bytes", unit="bytes")
SENT = _count("sent_bytes", "reply body bytes", unit="bytes")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Declared))
_HISTOGRAMS = (
    (DURATION, "duration"), (TTFT, "ttft"), (TTFO, "ttfo"), (TPOT, "tpot"), (ITL, "itl"),
    (E2EL, "e2el"), (CHOICE_TTFT, "choice_ttft"), (CHOICE_TPOT, "choice_tpot"),
    (CHOICE_E2EL, "choice_e2el"),
)  # fmt: skip


class RouteCollector(Collector):
    def __init__(self, stats: Statistics) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        made = families(ALL)
        for names, handle in self._stats.series.items():
            now = self._stats.snapshot(handle)
            self._requests(made, names, now)
            self._sums(made, names, now)
            self._histograms(made, names, handle, now)
        yield from made.values()

    @staticmethod
    def _requests(made: dict[str, Metric], names: Names, now: SeriesSnapshot) -> None:
        if not names[2]:
            add(made, OFFERED, names[:2], now.offered)
        for status, outcome, count in now.requests:
            shown = f"{status}xx" if status else "none"
            add(made, REQUESTS, (*names, shown, OUTCOMES[outcome]), count)
        for end, count in zip(ENDS, now.ends, strict=False):
            add(made, FINISHED, (*names, end), count)
        words = dict(zip(WORDS, now.words, strict=False))
        add(made, GOOD, names, words["good"])
        for cause in CAUSES:
            add(made, MISSES, (*names, cause), words[cause])
        for level, count in zip(LEVELS, now.broken, strict=True):
            add(made, BROKEN, (*names, level), count)
        for lane, count in zip(LANES, now.lanes, strict=True):
            add(made, LANE, (*names, lane), count)

    @staticmethod
    def _sums(made: dict[str, Metric], names: Names, now: SeriesSnapshot) -> None:
        for metric, value in (
            (CHUNKS, now.chunks), (PROMPT_TOKENS, now.input_tokens),
            (COMPLETION_TOKENS, now.output_tokens), (CACHED_TOKENS, now.cached_tokens),
            (GOOD_TOKENS, now.good_tokens), (METERED, now.metered), (UNCOUNTED, now.uncounted),
            (RECEIVED, now.bytes_in), (SENT, now.bytes_out),
        ):  # fmt: skip
            add(made, metric, names, value)

    def _histograms(
        self, made: dict[str, Metric], names: Names, handle: int, now: SeriesSnapshot
    ) -> None:
        for metric, name in _HISTOGRAMS:
            if not names[2] and metric is not DURATION:
                continue  # no engine was asked: there are no tokens to time
            counts, total, within = now.histograms[name]
            split_s = self._stats.split(handle, name)
            rows = buckets(self._stats.bounds(name), counts, split_s, within)
            made[metric.name].add_metric(names, rows, total)  # type: ignore[attr-defined]
