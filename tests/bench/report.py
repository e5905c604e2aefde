"""From the figures of all rounds to the one JSON line and the table for people. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

OURS = ("kvgate", "kvgate_starlette")
OURS_KV = ("kvgate_kv", "kvgate_kv_starlette")
# figure -> what to read from a run's result: (scenario, key, key within it)
FIGURES = {
    "per_request_us": ("small", "us_each", None),
    "per_request_paced_us": ("paced", "us_each", None),
    "per_request_kv_us": ("kv", "us_each", None),
    "per_chunk_us": ("streams", "us_each", None),
    "rss_per_stream_kib": ("idle", "kib_each", "rss"),
    "pss_per_stream_kib": ("idle", "kib_each", "pss"),
    "request_p50_ms": ("paced", "latency_ms", "p50"),
    "request_p99_ms": ("paced", "latency_ms", "p99"),
    "ttft_p50_ms": ("streams", "ttft_ms", "p50"),
    "ttft_p99_ms": ("streams", "ttft_ms", "p99"),
}
DIRECT = "direct"  # the load generator on the engines themselves


@dataclass(frozen=True, slots=True)
class Run:
    """One scenario on one proxy in one round; `found` is what load.py printed."""

    round: int
    proxy: str
    scenario: str
    found: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """`figure` of `ours` must be at most `times` that of `theirs`, or at most `value`."""

    figure: str
    ours: str
    theirs: str = ""
    times: float = 1.0
    value: float = 0.0


TARGETS = (
    *(Target("per_chunk_us", ours, "nginx", 1.15) for ours in OURS),
    *(Target("per_chunk_us", ours, "vllm_router", 0.85) for ours in OURS),
    Target("per_request_us", "kvgate", "vllm_router", 0.4),
    Target("per_request_us", "kvgate_starlette", "vllm_router", 0.6),
    Target("per_request_us", "kvgate_realistic", "kvgate", 1.05),
    Target("per_request_kv_us", "kvgate_kv", "vllm_router_kv_aware", 0.5),
    Target("per_request_kv_us", "kvgate_kv", "vllm_router_cache_aware", 0.5),
    *(Target("added_ttft_p99_ms", ours, "vllm_router") for ours in OURS),
    *(Target("rss_per_stream_kib", ours, value=40.0) for ours in OURS),
)

Spread = dict[str, dict[str, dict[str, float]]]  # figure -> proxy -> min, median, max


def figure(run: Run, name: str) -> float | None:
    scenario, key, inner = FIGURES[name]
    if run.scenario != scenario or key not in run.found:
        return None
    value = run.found[key]
    return float(value if inner is None else value[inner])


def spread(runs: list[Run]) -> Spread:
    """Per figure and proxy, over the rounds. Added TTFT is the difference to the direct run of
    its round.
    """
    values: dict[str, dict[str, list[float]]] = {}
    direct = {
        (run.round, name): value
        for run in runs
        if run.proxy == DIRECT
        for name in FIGURES
        if (value := figure(run, name)) is not None
    }
    for run in runs:
        for name in FIGURES:
            value = figure(run, name)
            if value is None:
                continue
            if run.proxy != DIRECT or name.endswith("_ms"):
                values.setdefault(name, {}).setdefault(run.proxy, []).append(value)
            if name.startswith("ttft") and run.proxy != DIRECT and (run.round, name) in direct:
                added = values.setdefault(f"added_{name}", {}).setdefault(run.proxy, [])
                added.append(value - direct[run.round, name])
    return {
        name: {
            proxy: {
                "min": round(min(seen), 3),
                "median": round(median(seen), 3),
                "max": round(max(seen), 3),
            }
            for proxy, seen in by_proxy.items()
        }
        for name, by_proxy in values.items()
    }


def medians(spreads: Spread, name: str) -> dict[str, float]:
    return {proxy: seen["median"] for proxy, seen in spreads.get(name, {}).items()}


def judge(spreads: Spread) -> list[dict[str, Any]]:
    """Each target whose figures were measured: what was reached, of what bound."""
    judged = []
    for target in TARGETS:
        ours = medians(spreads, target.figure).get(target.ours)
        theirs = medians(spreads, target.figure).get(target.theirs, 0.0)
        bound = target.value or theirs * target.times
        if ours is None or not bound:
            continue
        what = f"{target.figure} {target.ours} <= " + (
            f"{target.times:g} x {target.theirs}" if target.theirs else f"{target.value:g}"
        )
        ratio = round(ours / theirs, 3) if theirs else None
        judged.append({"target": what, "ratio": ratio, "met": ours <= bound})
    return judged


def ratios(spreads: Spread) -> dict[str, dict[str, float]]:
    """Costs per chunk and request of our lanes over those of every other proxy."""
    found: dict[str, dict[str, float]] = {}
    ours = OURS + OURS_KV
    for name in ("per_request_us", "per_request_paced_us", "per_request_kv_us", "per_chunk_us"):
        by_proxy = medians(spreads, name)
        pairs = [(a, b) for a in by_proxy if a in ours for b in by_proxy if b not in ours]
        if pairs:
            found[name] = {f"{a}/{b}": round(by_proxy[a] / by_proxy[b], 3) for a, b in pairs}
    return found


def held(runs: list[Run]) -> dict[str, dict[str, Any]]:
    """The run with 2 000 slow streams: an error is a wrong or lost reply, a stream not open at
    the end of the window, or a hundredth of the chunks missing.
    """
    found = {}
    for run in runs:
        if run.scenario != "hold":
            continue
        result = run.found
        wanted = result["wanted"]
        due = wanted * result["window"]["seconds"]
        errors = sum(result["errors"].values()) + wanted - result["streams_held"]
        errors += result["window"]["chunks"] < 0.99 * due
        found[run.proxy] = {
            "streams": result["streams_held"],
            "errors": errors,
            "chunks": result["window"]["chunks"],
            "longest_gap_ms": result["gap_ms"],
            "cpu_share": result["window"]["cpu_share"],
        }
    return found


def summary(runs: list[Run]) -> dict[str, Any]:
    """The JSON line but for machine, versions and date."""
    spreads = spread(runs)
    p50, p99 = (medians(spreads, f"added_ttft_{q}_ms") for q in ("p50", "p99"))
    memory = medians(spreads, "rss_per_stream_kib")
    ours = [memory[name] for name in OURS if name in memory]
    slow = held(runs)
    return {
        "per_request_us": medians(spreads, "per_request_us"),
        "per_request_paced_us": medians(spreads, "per_request_paced_us"),
        "per_request_kv_us": medians(spreads, "per_request_kv_us"),
        "kv_found": [
            {"round": run.round, "proxy": run.proxy, **run.found["found"]}
            for run in runs
            if "found" in run.found
        ],
        "per_chunk_us": medians(spreads, "per_chunk_us"),
        "added_ttft_ms": {name: {"p50": p50[name], "p99": p99[name]} for name in p50},
        "rss_per_stream_kib": max(ours) if ours else None,
        "rss_per_stream_kib_by_proxy": memory,
        "streams_2000_errors": sum(result["errors"] for result in slow.values()) if slow else None,
        "streams_2000": slow,
        "ratios": ratios(spreads),
        "targets": judge(spreads),
        "errors": [
            {
                "round": run.round,
                "proxy": run.proxy,
                "scenario": run.scenario,
                "errors": run.found["errors"],
                "samples": run.found["error_samples"],
            }
            for run in runs
            if run.found["errors"]
        ],
        "noise": noise(runs),
        "rounds": spreads,
    }


def noise(runs: list[Run]) -> dict[str, float]:
    """How late the load generator's 1 ms timer woke and how busy it was: high figures void
    latencies.
    """
    paced = [run.found["lag_ms"]["p99"] for run in runs if run.scenario in ("paced", "streams")]
    shares = [run.found["window"]["load_cpu_share"] for run in runs if "window" in run.found]
    return {
        "timer_late_p99_ms": round(median(paced), 3) if paced else 0.0,
        "load_cpu_share_max": max(shares, default=0.0),
    }


def table(line: dict[str, Any]) -> str:
    """min / median / max per figure and proxy, then the targets."""
    spreads: Spread = line["rounds"]
    proxies = sorted({proxy for by_proxy in spreads.values() for proxy in by_proxy})
    rows = [f"{'median (min-max)':24}" + "".join(f"{proxy:>26}" for proxy in proxies)]
    for name, by_proxy in spreads.items():
        row = f"{name:24}"
        for proxy in proxies:
            seen = by_proxy.get(proxy)
            text = f"{seen['median']:.2f} ({seen['min']:.2f}-{seen['max']:.2f})" if seen else "-"
            row += f"{text:>26}"
        rows.append(row)
    for seen in line["kv_found"]:
        rows.append(f"kv, round {seen['round'] + 1}, {seen['proxy']}: {seen['found']} {seen['by']}")
    for proxy, seen in line["streams_2000"].items():
        rows.append(f"2 000 streams, {proxy}: {seen}")
    for judged in line["targets"]:
        ratio = "" if judged["ratio"] is None else f" ({judged['ratio']:.2f} x)"
        rows.append(f"{'met   ' if judged['met'] else 'MISSED'} {judged['target']}{ratio}")
    rows += [f"ERRORS {error}" for error in line["errors"]]
    return "\n".join(rows)
