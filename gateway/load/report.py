"""A summary as text for people, and as one JSON object. Every figure says what it is of."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gateway.load.goodput import Goodput, Slo
from gateway.load.intervals import QUANTILES, Estimate, Spread
from gateway.load.search import Search
from gateway.load.summary import LATE_S, Summary
from gateway.planner.counted import counted

ROWS = (
    ("ttft", "TTFT"),
    ("itl", "ITL"),
    ("tpot", "TPOT"),
    ("e2el", "E2EL"),
    ("ttft_sent", "TTFT from sent"),
    ("e2el_sent", "E2EL from sent"),
    ("itl_most", "longest gap"),
)


def as_json(found: Summary) -> dict[str, Any]:
    tokens = found.tokens
    return {
        "offered": found.offered,
        "completed": found.completed,
        "failed": found.failed,
        "cut": found.cut,
        "stopped": found.stopped,
        "window_s": found.window_s,
        "offered_rate": found.offered_rate,
        "request_rate": found.request_rate,
        "output_tokens_rate": found.output_rate,
        "input_tokens_rate": found.input_rate,
        "concurrency_most": found.concurrency,
        "held_by_cap": found.held,
        "held_mean_s": found.held_mean_s,
        "tokens": asdict(tokens),
        **{f"{name}_s": _spread(spread) for name, spread in found.spreads.items()},
        "slo": {name: value for name, value in asdict(found.slo).items() if value},
        "goodput": found.goodput and asdict(found.goodput),
        "client": {**asdict(found.client), "doubtful": found.client.doubtful},
    }


def search_json(search: Search) -> dict[str, Any]:
    low, high = search.low, search.high
    return {
        "max_goodput_rate": low.rate if low else None,
        "not_kept_at": high.rate if high else None,
        "target": search.target,
        "verdict": search.verdict,
        "probes": [asdict(probe) for probe in search.probes],
    }


def _spread(found: Spread | None) -> dict[str, Any] | None:
    if found is None:
        return None
    named = {"mean": found.mean} | {f"p{q * 100:g}": one for q, one in found.quantiles.items()}
    return {
        "count": found.count,
        "max": found.most,
        **{name: asdict(one) for name, one in named.items()},
    }


def as_text(found: Summary) -> str:
    tokens, client = found.tokens, found.client
    fails = ", ".join(f"{count} {cause}" for cause, count in found.failed.items())
    lines = [
        f"offered {counted(found.offered, 'request')} ({found.offered_rate:.2f}/s), completed "
        f"{found.completed}, failed {sum(found.failed.values())}{f' ({fails})' if fails else ''}"
        f"{f', cut by the end {found.cut}' if found.cut else ''}",
        f"in {found.window_s:.1f} s: {found.request_rate:.2f} requests/s, "
        f"{found.output_rate:.0f} output tokens/s, {found.input_rate:.0f} input tokens/s",
        f"at once {found.concurrency} at most; "
        + (
            f"the cap held {found.held} back, {found.held_mean_s:.3f} s in the mean"
            if found.held
            else "no cap held any back"
        ),
        *_table(found),
    ]
    lines += _lengths(found)
    if found.goodput is not None:
        lines += _slo(found.goodput, found.slo)
    lines.append(
        f"client: sent {client.send_p50_s * 1e3:.1f} ms late (p50), {client.send_p99_s * 1e3:.1f} "
        f"ms (p99); its loop {client.loop_p99_s * 1e3:.1f} ms (p99); {client.cpu:.0%} of a core"
    )
    if client.doubtful:
        lines.append(
            "    hint: the client may be what is slow: its loop should be within "
            f"{LATE_S * 1e3:g} ms and below 80 % of a core; offer less, or from several machines"
        )
    if tokens.uncounted:
        answers = counted(tokens.uncounted, "answer")
        lines.append(f"{answers} without usage: events stand for tokens")
    lines += [f"{cause}: {sample}" for cause, sample in found.samples.items()]
    return "\n".join(lines)


def _table(found: Summary) -> list[str]:
    named = [(title, spread) for name, title in ROWS if (spread := found.spreads[name])]
    if not named:
        return []
    shares = "".join(f"{f'p{share * 100:g}':>10}" for share in QUANTILES)
    head = f"{'':<16}{'mean':>10}{'95 % interval':>20}{shares}{'p99, 95 %':>20}"
    return ["", head, *(_row(title, spread) for title, spread in named), ""]


def _row(title: str, found: Spread) -> str:
    cells = "".join(f"{_ms(one.value):>10}" for one in found.quantiles.values())
    tail = found.quantiles[QUANTILES[-1]]
    return f"{title:<16}{_ms(found.mean.value):>10}{_interval(found.mean):>20}{cells}" + (
        f"{_interval(tail):>20}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds:.2f}s" if seconds >= 10 else f"{seconds * 1e3:.1f}ms"


def _interval(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return "too few"
    return f"{_ms(found.low)} to {_ms(found.high)}"


def _lengths(found: Summary) -> list[str]:
    tokens = found.tokens
    if not found.completed:
        return []
    lines = [
        f"tokens of completed requests: {tokens.counted_in} in ({tokens.asked_in} planned), "
        f"{tokens.counted_out} out ({tokens.asked_out} planned)"
    ]
    if tokens.cached >= 0 and tokens.counted_in:
        lines[0] += f", {tokens.cached / tokens.counted_in:.1%} of prompts cached"
    return lines


def _slo(found: Goodput, slo: Slo) -> list[str]:
    wanted = [("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("E2EL", slo.e2el_s)]
    names = " and ".join(f"{name} <= {_ms(limit)}" for name, limit in wanted if limit)
    missed = ", ".join(f"{count} {cause}" for cause, count in found.missed.items())
    return [
        f"{names}: attainment {found.attainment:.1%} ({found.low:.1%} to {found.high:.1%}), "
        f"goodput {found.goodput:.2f} requests/s" + (f"; missed: {missed}" if missed else "")
    ]


def search_text(search: Search) -> str:
    lines = [f"{'offered/s':>10}{'in time':>9}{'95 % interval':>18}{'goodput':>9}"]
    for probe in search.probes:
        one = probe.found
        interval = f"{one.low:.1%} to {one.high:.1%}"
        lines.append(
            f"{probe.rate:>10.3f}{one.attainment:>9.1%}{interval:>18}{one.goodput:>9.2f}"
            + ("" if probe.resolved else "  unresolved")
        )
    low, high = search.low, search.high
    if low is None:
        return "\n".join([*lines, f"no rate kept the SLO for {search.target:.0%}"])
    bound = f", not at {high.rate:.3f}" if high else ", and no rate was too high"
    lines.append(
        f"most that keeps the SLO for {search.target:.0%} of requests: {low.rate:.3f}/s{bound}: "
        f"{search.verdict}"
    )
    if search.verdict == "unresolved":
        lines.append("    hint: more requests for each rate make intervals narrower (--requests)")
    return "\n".join(lines)
