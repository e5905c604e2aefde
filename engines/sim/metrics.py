"""The engine's `/metrics` page, with vLLM 0.32's metric names, types, labels and buckets.

Written out here instead of through a metrics library: one engine observes a token gap per token of
every stream, and a plain list and a bisection cost a fifth of a labelled observation.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
           240.0, 480.0, 960.0, 1920.0, 7680.0)
TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
       20.0, 40.0, 80.0)
TOKENS: tuple[float, ...] = ()  # stands for 1, 2, 5, 10, ... up to the longest context
ITERATION = tuple(float(1 << i) for i in (0, *range(3, 15)))
PARAMS_N = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
XFER_TIME = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
XFER_BYTES = tuple(float(1 << i) for i in range(12, 38, 2))
XFER_DESCRIPTORS = (10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0)

# name -> (help, label that tells the series apart, its values)
COUNTERS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "prefix_cache_queries": ("Prefix cache queries, in tokens.", "", ()),
    "prefix_cache_hits": ("Prefix cache hits, in tokens.", "", ()),
    "external_prefix_cache_queries": ("Prefix cache queries to other engines, tokens.", "", ()),
    "external_prefix_cache_hits": ("Prefix cache hits in other engines, in tokens.", "", ()),
    "num_preemptions": ("Preempted requests.", "", ()),
    "prompt_tokens": ("Prefill tokens processed.", "", ()),
    "prompt_tokens_by_source": (
        "Prompt tokens by source.", "source",
        ("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    "prompt_tokens_cached": ("Cached prompt tokens (local and external).", "", ()),
    "prompt_tokens_cached_by_source": (
        "Cached prompt tokens by source.", "source",
        ("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    "generation_tokens": ("Generation tokens processed.", "", ()),
    "request_success": (
        "Finished requests.", "finished_reason",
        ("stop", "length", "abort", "error", "repetition"),
    ),
    "admission_rejections": (
        "Rejected requests.", "reason", ("max_num_queued_reqs", "max_num_queued_tokens")),
    "nixl_num_failed_transfers": ("Failed KV transfers.", "", ()),
    "nixl_num_failed_notifications": ("Failed notifications.", "", ()),
    "nixl_num_kv_expired_reqs": ("Requests whose KV expired before it was read.", "", ()),
    "nixl_num_notifications_after_expiry": ("Notifications for unknown requests.", "", ()),
}

ENGINE_LESS = ("admission_rejections",)

HISTOGRAMS: Mapping[str, tuple[str, Sequence[float]]] = {
    "request_prompt_tokens": ("Prefill tokens per request.", TOKENS),
    "request_generation_tokens": ("Generation tokens per request.", TOKENS),
    "iteration_tokens_total": ("Tokens per engine step.", ITERATION),
    "request_max_num_generation_tokens": ("Longest generation of a request.", TOKENS),
    "request_params_n": ("The n parameter.", PARAMS_N),
    "request_params_max_tokens": ("The max_tokens parameter.", TOKENS),
    "time_to_first_token_seconds": ("Time to first token in seconds.", TTFT),
    "inter_token_latency_seconds": ("Inter-token latency in seconds.", ITL),
    "request_time_per_output_token_seconds": ("Time per output token per request.", ITL),
    "e2e_request_latency_seconds": ("End to end request latency in seconds.", LATENCY),
    "request_queue_time_seconds": ("Time spent waiting.", LATENCY),
    "request_inference_time_seconds": ("Time spent running.", LATENCY),
    "request_prefill_time_seconds": ("Time spent in prefill.", LATENCY),
    "request_decode_time_seconds": ("Time spent in decode.", LATENCY),
    "request_num_preemptions": ("Preemptions per request.", PREEMPTIONS),
    "request_prefill_kv_computed_tokens": ("Prompt tokens computed per request.", TOKENS),
    "nixl_xfer_time_seconds": ("KV transfer time.", XFER_TIME),
    "nixl_post_time_seconds": ("Time to post a KV transfer.", XFER_TIME),
    "nixl_bytes_transferred": ("Bytes per KV transfer.", XFER_BYTES),
    "nixl_num_descriptors": ("Descriptors per KV transfer.", XFER_DESCRIPTORS),
}


def token_buckets(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... as far as a context of `longest` tokens goes."""
    steps = (mantissa * 10**power for power in range(10) for mantissa in (1, 2, 5))
    return tuple(float(s) for s in steps if s <= longest)


class Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics:
    """All counters and histograms of one engine rank."""

    def __init__(self, rank: int, model_name: str, longest: int, transfers: bool) -> None:
        """`longest` = tokens of the longest context; `transfers`: with the NIXL ones."""
        self.rank, self.model_name = rank, model_name
        self.created = time.time()
        shown = transfers, "nixl_"
        tokens = token_buckets(longest)
        self.counters: dict[str, dict[str, float]] = {
            name: dict.fromkeys(values or ("",), 0.0)
            for name, (_help, _label, values) in COUNTERS.items()
            if shown[0] or not name.startswith(shown[1])
        }
        self.histograms = {
            name: Histogram(bounds or tokens)
            for name, (_help, bounds) in HISTOGRAMS.items()
            if shown[0] or not name.startswith(shown[1])
        }
        self.itl = self.histograms["inter_token_latency_seconds"]

    def add(self, name: str, amount: float = 1.0, label: str = "") -> None:
        series = self.counters.get(name)
        if series is not None:
            series[label] += amount

    def observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f'{k}="{_escape(v)}"' for k, v in sorted(pairs)) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


Gauge = tuple[str, str, Sequence[tuple[Sequence[tuple[str, str]], float]]]


def render(ranks: Sequence[Metrics], gauges: Iterable[Gauge]) -> bytes:
    """The page in Prometheus text format; `gauges` are (name, help, [(labels, value)])."""
    out: list[str] = []

    def head(name: str, kind: str, text: str) -> None:
        out.append(f"# HELP vllm:{name} {text}\n# TYPE vllm:{name} {kind}\n")

    for name, text, series in gauges:
        head(name, "gauge", text)
        out += [f"vllm:{name}{_labels(labels)} {float(value)}\n" for labels, value in series]
    base = [(("engine", str(m.rank)), ("model_name", m.model_name)) for m in ranks]
    for name in ranks[0].counters:
        text, label, _values = COUNTERS[name]
        shared = name in ENGINE_LESS  # counted before a rank is chosen
        rows = [
            (_labels([*(b[1:] if shared else b), (label, value)] if label else b), amount,
             m.created)
            for m, b in list(zip(ranks, base, strict=True))[: 1 if shared else None]
            for value, amount in m.counters[name].items()
        ]
        head(f"{name}_total", "counter", text)
        out += [f"vllm:{name}_total{labels} {amount}\n" for labels, amount, _ in rows]
        head(f"{name}_created", "gauge", text)
        out += [f"vllm:{name}_created{labels} {created}\n" for labels, _, created in rows]
    for name in ranks[0].histograms:
        head(name, "histogram", HISTOGRAMS[name][0])
        for m, b in zip(ranks, base, strict=True):
            out += _histogram_rows(name, m.histograms[name], b)
        head(f"{name}_created", "gauge", HISTOGRAMS[name][0])
        out += [f"vllm:{name}_created{_labels(b)} {m.created}\n"
                for m, b in zip(ranks, base, strict=True)]
    return "".join(out).encode()


def _histogram_rows(name: str, h: Histogram, base: Sequence[tuple[str, str]]) -> list[str]:
    rows, running = [], 0
    for bound, count in zip((*map(str, h.bounds), "+Inf"), h.counts, strict=True):
        running += count
        rows.append(f"vllm:{name}_bucket{_labels([*base, ('le', bound)])} {float(running)}\n")
    rows.append(f"vllm:{name}_count{_labels(base)} {float(running)}\n")
    rows.append(f"vllm:{name}_sum{_labels(base)} {h.sum}\n")
    return rows
