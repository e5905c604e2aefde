"""`kvgate plan fit`: engines, roles and chunk size that serve recorded traffic within an SLO.

Exit status: 0 done, 1 the trace or the means cannot be, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gateway import plan_report
from gateway.cli import amounts, live
from gateway.cli.companion import USAGE, Failed, Parser, faults_of, status_of, under_way
from gateway.cli.live import Live
from gateway.planner import findings
from gateway.planner.counted import counted
from gateway.planner.fit import Goal, Means, Option, Planner
from gateway.planner.queueing import Layout
from gateway.planner.trace_files import ROWS_MAX, rows

MOST = 64
ENGINES = 8
PROFILE = "h100-70b-tp4"
BAR = 24


def main(argv: Sequence[str]) -> int:
    return status_of(lambda: _run(argv))


def _run(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    now = _live(options)
    ttft_s, tpot_s = options.slo
    goal = Goal(ttft_s, tpot_s, options.target)
    gpus = options.gpus_per_engine or _gpus(options.profile)
    means = Means(
        options.profile,
        gpus,
        options.kv_tokens,
        options.link / 8,
        options.speed,
        constants=now.constants if now else (),
    )
    with faults_of(options.trace):
        planner = Planner(rows(options.trace, options.requests), goal, _told)
        found = planner.options(options.engines, means)
        needed = planner.needed(MOST, means) if options.needed else None
        swings = findings.swings(planner, found, means)
        layout = _layout(now, means) if now else None
        there = planner.option(layout, means) if layout else None
    under_way("")
    report = _report(planner, means, found, swings)
    if now:
        report["measured"][0] = now.measured[0]
        report["measured"] += now.measured[1:]
        report["assumed"][:1] = now.assumed
    report["measured"][1:1] = planner.found.hashed.measured
    report["assumed"] += planner.found.hashed.assumed
    report["now"] = there and _option(there, goal, means)
    report["needed"] = needed and {"engines": needed[0], "layout": needed[1].layout.name}
    if now and now.report:
        _keep(now.report, report)
    if options.json:
        print(json.dumps(report))
    else:
        print("\n".join(_lines(report, asked=options.needed)))


def _keep(path: str, report: dict[str, Any]) -> None:
    """For the dashboard. Raises Failed."""
    try:
        plan_report.write(path, report, time.time())
    except OSError as error:
        hint = "plan_report names a file in a folder that you may write to"
        raise Failed(f"{path}: {error.strerror}", hint) from None


def _live(options: argparse.Namespace) -> Live | None:
    """Puts what a running gateway says where no option does. Raises Failed."""
    if options.live == (options.trace is not None):
        raise Failed("--trace FILE, or --live for a running gateway", status=USAGE)
    found = live.look(options) if options.live else None
    if found is not None:
        options.trace = found.trace
        options.profile = options.profile or found.profile
        options.kv_tokens = options.kv_tokens or found.kv_tokens
        if options.slo is None and (found.ttft_s or found.tpot_s):
            options.slo = found.ttft_s, found.tpot_s
    options.engines = options.engines or (found.engines if found else ENGINES)
    options.profile = options.profile or PROFILE
    if options.slo is None:
        raise Failed("no SLO is known", "--slo ttft=2s,tpot=50ms", USAGE)
    return found


def _layout(now: Live, means: Means) -> Layout | None:
    """As the engines are now; None where none may answer."""
    chunk = now.chunk_tokens or means.fit(0).chunk_tokens
    if now.prefill == now.engines:
        return None
    if now.mode == "off":  # engines for prompts alone get nothing
        return Layout(now.engines - now.prefill, 0, chunk, means.link_gb_s)
    auto = now.mode == "auto"
    return Layout(now.engines, now.prefill, chunk, means.link_gb_s, now.both, auto)


def _gpus(profile: str) -> int:
    """`h100-70b-tp4` has four."""
    found = re.search(r"-tp(\d+)$", profile)
    return int(found.group(1)) if found else 1


def _told(what: str, share: float) -> None:
    full = round(share * BAR)
    under_way(f"[{'#' * full}{'.' * (BAR - full)}] {what}")


def _report(
    planner: Planner, means: Means, found: list[Option], swings: list[findings.Swing]
) -> dict[str, Any]:
    goal, best = planner.goal, found[0]
    low, high = findings.interval(best, goal)
    return {
        "trace": planner.found.name,
        "requests": len(planner.found.rows),
        "rate": planner.rate * means.speed,
        "goal": asdict(goal),
        "means": asdict(means),
        "options": [_option(option, goal, means) for option in found],
        "best": best.layout.name,
        "attainment": best.attained(goal),
        "interval": [low, high],
        "verdict": asdict(findings.verdict(found, goal)),
        "bottleneck": findings.bottleneck(best, goal),
        "swings": [asdict(swing) for swing in swings],
        "relaxation": asdict(findings.relaxation(best, goal)),
        "measured": [
            f"arrivals and lengths: the trace ({planner.found.format})",
            "routing and queues: replayed with the gateway's own decisions",
        ],
        "assumed": [
            f"step times and sizes: the profile {means.profile}; `kvgate calibrate` measures an "
            "engine",
            f"links: {means.link_gb_s * 8:g} Gbit/s of each engine, 2 ms a transfer, shared by "
            "the transfers from and to it",
            "answers as long as recorded; nobody gives up",
        ],
    }


def _option(option: Option, goal: Goal, means: Means) -> dict[str, Any]:
    run = option.run
    assert run is not None
    p50, p90 = run.quantiles("ttft", [0.5, 0.9])
    return {
        "layout": option.layout.name,
        **asdict(option.layout),
        # JSON has no infinity: None where a queue never ends.
        "predicted": option.predicted
        and {
            name: value if math.isfinite(value) else None
            for name, value in asdict(option.predicted).items()
        },
        "attainment": option.attained(goal),
        "ttft_mean_s": run.mean("ttft"),
        "ttft_p50_s": p50,
        "ttft_p90_s": p90,
        "tpot_p50_s": run.quantiles("tpot", [0.5])[0],
        "hit": run.hit_tokens / run.input_tokens,
        "goodput_per_gpu": findings.goodput(option, goal, means.gpus),
    }


def _lines(report: dict[str, Any], asked: bool) -> list[str]:
    goal = report["goal"]
    slo = [f"TTFT <= {goal['ttft_s']:g} s"] * (goal["ttft_s"] > 0)
    slo += [f"TPOT <= {goal['tpot_s'] * 1e3:g} ms"] * (goal["tpot_s"] > 0)
    low, high = report["interval"]
    lines = [
        report["verdict"]["sentence"],
        "",
        f"{report['trace']}: {counted(report['requests'], 'request')}, {report['rate']:.2f}/s; "
        f"{' and '.join(slo) or 'no SLO'} for {goal['target']:.0%}; engines "
        f"{report['means']['profile']} of {counted(report['means']['gpus'], 'GPU')}",
        f"best: {report['best']}, in time {report['attainment']:.1%} (one replay; 95 % interval "
        f"{low:.1%} to {high:.1%})",
        *_now(report),
        "",
        f"{'layout':<28}{'in time':>8}{'TTFT mean':>11}{'formula':>9}{'p90':>8}{'TPOT p50':>10}"
        f"{'formula':>9}{'hit':>7}{'good/s/GPU':>12}",
    ]
    for one in report["options"]:
        said = one["predicted"]
        lines.append(
            f"{one['layout']:<28}{one['attainment']:>8.3f}{one['ttft_mean_s']:>10.2f}s"
            f"{_time(said['ttft_s'], 1, 's')}{one['ttft_p90_s']:>7.2f}s"
            f"{one['tpot_p50_s'] * 1e3:>8.1f}ms"
            f"{_time(said['tpot_s'], 1e3, 'ms')}{one['hit']:>7.3f}{one['goodput_per_gpu']:>12.4f}"
        )
    lines += ["", f"bottleneck: {report['bottleneck']}", "", "if it were otherwise, in time:"]
    for swing in report["swings"]:
        two = swing["disaggregated"]
        split = "" if two is None else f", disaggregated {two:.3f}"
        lines.append(f"  {swing['what']:<44} aggregated {swing['aggregated']:.3f}{split}")
    lines += ["", *_needed(report, asked), _relaxed(report), ""]
    return [*lines, *live.said(report["measured"], report["assumed"])]


def _now(report: dict[str, Any]) -> list[str]:
    now = report["now"]
    if now is None:
        return []
    return [f"as it is now: {now['layout']}, in time {now['attainment']:.1%} by a replay"]


def _time(value: float | None, scale: float, unit: str) -> str:
    """Nine wide."""
    if value is None:
        return f"{'endless':>9}"
    return f"{f'{value * scale:.{2 if scale == 1 else 1}f}{unit}':>9}"


def _needed(report: dict[str, Any], asked: bool) -> list[str]:
    if not asked:
        return []
    needed = report["needed"]
    if needed is None:
        return [f"no layout of up to {MOST} engines reaches {report['goal']['target']:.0%}"]
    gpus = needed["engines"] * report["means"]["gpus"]
    return [f"fewest engines: {needed['engines']} ({counted(gpus, 'GPU')}), {needed['layout']}"]


def _relaxed(report: dict[str, Any]) -> str:
    goal, found = report["goal"], report["relaxation"]
    if report["attainment"] >= goal["target"]:
        return f"the target of {goal['target']:.0%} is met"
    ways = []
    if found["ttft_s"]:
        ways.append((found["ttft_s"] / goal["ttft_s"], f"TTFT <= {found['ttft_s']:.2f} s"))
    if found["tpot_s"]:
        ways.append((found["tpot_s"] / goal["tpot_s"], f"TPOT <= {found['tpot_s'] * 1e3:.0f} ms"))
    by = found["factor"]
    if by and goal["ttft_s"] and goal["tpot_s"]:
        ttft, tpot = goal["ttft_s"] * by, goal["tpot_s"] * by * 1e3
        ways.append((by, f"TTFT <= {ttft:.2f} s and TPOT <= {tpot:.0f} ms ({by:.2f} times both)"))
    if not ways:
        return "no SLO up to ten times as long reaches the target: it takes more engines"
    nearest = ", or ".join(way for _, way in sorted(ways))
    return f"{report['best']} would reach {goal['target']:.0%} with {nearest}"


def _parser() -> Parser:
    parser = Parser(
        prog="kvgate plan fit",
        description="Engines, roles and chunk size that serve recorded traffic within an SLO.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--trace", type=Path, metavar="FILE", help="as kvgate workload reads it")
    add("--slo", type=amounts.slo, metavar="ttft=2s,tpot=50ms", help="(with --live: as configured)")
    add("--target", type=amounts.share, default=0.9, metavar="SHARE", help="in time (0.9)")
    add("--engines", type=amounts.some, default=0, metavar="N", help=f"there are ({ENGINES})")
    add("--needed", action="store_true", help=f"look for the fewest, up to {MOST}")
    add("--profile", default="", metavar="P", help=f"step times ({PROFILE})")
    add("--gpus-per-engine", type=amounts.count, default=0, metavar="N", help="(the profile's)")
    add("--kv-tokens", type=amounts.count, default=0, metavar="N", help="of an engine: 461k, 2m")
    add("--link", type=_link, default=100.0, metavar="GBIT", help="of each engine (100 Gbit/s)")
    add("--speed", type=_speed, default=1.0, metavar="X", help="arrivals come so much faster")
    add("--requests", type=amounts.count, default=ROWS_MAX, metavar="N", help="the first N only")
    add("--json", action="store_true", help="everything, as one JSON line")
    live.add_options(parser)
    parser.add_admin()
    return parser


def _link(text: str) -> float:
    return amounts.rates(text)[0]


def _speed(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 1e-3 <= found <= 1e3:
        raise argparse.ArgumentTypeError(f'"{text}" is not a factor from 0.001 to 1000')
    return found
