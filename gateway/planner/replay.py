"""A trace replayed against engines behind one or several policies, and what that comes to.

Goodput is compared with one bound for all policies: kvgate in front of engines that share one
endless cache, so that what remains is what routing and memory lose. Runs differ only by their seed,
which spreads arrivals inside the trace's ticks and breaks ties; figures are means over seeds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import repeat
from statistics import fmean

from gateway.planner.counted import counted
from gateway.planner.trace_files import Recorded
from native._core import Duet, Fit, Simulated, policies, simulate

OURS = "kvgate"
SHARES = [0.5, 0.9, 0.99]


@dataclass(frozen=True, slots=True)
class Setup:
    """`kv_tokens`, `chunk_tokens` 0: the profile's; `constants` of step times in place of its own.
    `ttft_s`, `tpot_s` 0: no SLO; `ask`: kvgate is told of them. `delay_s`, `loss`: of KV events,
    for kvgate alone; the others look into engines. `store_tokens`: of a kvbm daemon's memory that
    all engines load from, 0 = there is none.
    """

    engines: int = 8
    profile: str = "h100-70b-tp4"
    kv_tokens: int = 0
    chunk_tokens: int = 0
    speed: float = 1.0
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    ask: bool = True
    seeds: int = 1
    gateways: int = 1
    delay_s: float = 0.0
    loss: float = 0.0
    store_tokens: int = 0
    constants: tuple[tuple[str, float], ...] = ()

    def fit(self) -> Fit:
        """Raises ValueError for a profile there is not."""
        return Fit(self.profile, list(self.constants), self.chunk_tokens)


@dataclass(frozen=True, slots=True)
class Result:
    """Shares are of requests that arrived; times in seconds; `bound`: goodput over the bound's."""

    policy: str
    attainment: float
    bound: float
    goodput_rps: float
    hit: float
    ttft_mean_s: float
    ttft_s: tuple[float, ...]  # at SHARES
    tpot_s: tuple[float, ...]
    e2e_mean_s: float
    busy_max_over_mean: float
    preempted: float
    refused: int


def names(text: str) -> list[str]:
    """Policies of a comma-separated list; `all` = every one. Raises ValueError for one there is
    not."""
    known = policies()
    chosen = known if text == "all" else [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in known:
            raise ValueError(f'there is no policy "{name}"; there are {", ".join(known)}')
    return chosen


def run(
    recorded: Recorded, setup: Setup, policy: str, seed: int, *,
    shared: bool = False, duet: Duet | None = None,
) -> Simulated:  # fmt: skip
    """One run. `shared`: all engines share one endless cache; `duet`: how requests may be served by
    two of them. Raises ValueError for a set-up that cannot be.
    """
    return simulate(
        recorded.trace,
        policy,
        setup.fit(),
        engines=setup.engines,
        capacity_tokens=setup.kv_tokens,
        speed=setup.speed,
        spread_s=recorded.tick_s,
        seed=seed,
        shared=shared,
        gateways=setup.gateways,
        delay_s=setup.delay_s,
        loss=setup.loss,
        ttft_slo_ms=setup.ttft_s * 1e3 if setup.ask else 0.0,
        tpot_slo_ms=setup.tpot_s * 1e3 if setup.ask else 0.0,
        duet=duet,
        store_tokens=setup.store_tokens,
    )


def bound(recorded: Recorded, setup: Setup) -> float:
    """Requests in time, in the mean, where all engines share one endless cache."""
    one = replace(setup, gateways=1, delay_s=0.0, loss=0.0)
    return fmean(
        run(recorded, one, OURS, seed, shared=True).good(setup.ttft_s, setup.tpot_s)
        for seed in range(setup.seeds)
    )


def compare(recorded: Recorded, setup: Setup, chosen: list[str]) -> list[Result]:
    """A result for each policy, in their order."""
    best = bound(recorded, setup)
    return [result(recorded, setup, policy, best) for policy in chosen]


def result(recorded: Recorded, setup: Setup, policy: str, best: float) -> Result:
    """`best`: what `bound` found."""
    runs = list(map(partial(run, recorded, setup, policy), range(setup.seeds)))
    good = fmean(one.good(setup.ttft_s, setup.tpot_s) for one in runs)
    return Result(
        policy=policy,
        attainment=good / runs[0].requests,
        bound=good / best if best else 0.0,
        goodput_rps=good / fmean(one.end_s for one in runs),
        hit=fmean(one.hit_tokens / one.input_tokens for one in runs),
        ttft_mean_s=fmean(one.mean("ttft") for one in runs),
        ttft_s=_quantiles(runs, "ttft"),
        tpot_s=_quantiles(runs, "tpot"),
        e2e_mean_s=fmean(one.mean("e2e") for one in runs),
        busy_max_over_mean=fmean(max(one.busy_s) / fmean(one.busy_s) for one in runs),
        preempted=fmean(one.preempted for one in runs),
        refused=runs[0].refused,
    )


def _quantiles(runs: list[Simulated], name: str) -> tuple[float, ...]:
    found = map(Simulated.quantiles, runs, repeat(name), repeat(SHARES))
    return tuple(fmean(values) for values in zip(*found, strict=True))


def as_json(recorded: Recorded, setup: Setup, results: list[Result]) -> dict[str, object]:
    """Everything that is needed to run it again, and what came of it."""
    trace = recorded.trace
    return {
        "trace": {
            "name": recorded.name,
            "format": recorded.format,
            "requests": len(trace),
            "span_s": trace.span_s,
            "tick_s": recorded.tick_s,
            "input_tokens": trace.input_tokens,
            "output_tokens": trace.output_tokens,
            "hashed": asdict(recorded.hashed),
            "endless_hit": trace.reusable_tokens() / trace.input_tokens,
        },
        "setup": asdict(setup),
        "shares": SHARES,
        "policies": {one.policy: asdict(one) for one in results},
    }


_HEAD = (
    f"{'policy':<20}{'in time':>9}{'bound':>7}{'hit':>7}{'TTFT mean':>11}{'p50':>8}{'p90':>8}"
    f"{'p99':>8}{'TPOT p50':>10}{'p99':>8}{'E2E':>8}{'busy':>6}"
)


def as_table(recorded: Recorded, setup: Setup, results: list[Result]) -> str:
    """For people. Best first where there is an SLO."""
    trace = recorded.trace
    slo = [f"TTFT <= {setup.ttft_s:g} s"] * (setup.ttft_s > 0)
    slo += [f"TPOT <= {setup.tpot_s * 1e3:g} ms"] * (setup.tpot_s > 0)
    lines = [
        f"{recorded.name} ({recorded.format}): {counted(len(trace), 'request')} in "
        f"{trace.span_s:.0f} s at speed {setup.speed:g}; an endless cache would save "
        f"{trace.reusable_tokens() / trace.input_tokens:.1%} of the prompt tokens",
        f"{counted(setup.engines, 'engine')} {setup.profile}; {' and '.join(slo) or 'no SLO'}; "
        + (f"means of {setup.seeds} seeds" if setup.seeds > 1 else "one seed"),
        "",
        _HEAD,
    ]
    if slo:
        results = sorted(results, key=lambda one: -one.attainment)
    for one in results:
        ttft = "".join(f"{value:>7.2f}s" for value in one.ttft_s)
        lines.append(
            f"{one.policy:<20}{one.attainment:>9.3f}{one.bound:>7.3f}{one.hit:>7.3f}"
            f"{one.ttft_mean_s:>10.2f}s{ttft}{one.tpot_s[0] * 1e3:>8.1f}ms"
            f"{one.tpot_s[-1] * 1e3:>6.0f}ms{one.e2e_mean_s:>7.2f}s{one.busy_max_over_mean:>6.2f}"
        )
    lines += [
        "",
        "in time: share of requests within the SLO; bound: goodput over that of engines that share",
        "one endless cache; busy: the busiest engine over the mean.",
        *(f"assumed: {line}" for line in recorded.hashed.assumed),
    ]
    if results and results[0].refused:
        lines.append(f"refused, as longer than an engine's memory: {results[0].refused}")
    return "\n".join(lines)
