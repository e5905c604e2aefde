"""A workload report for people, as lines of text."""

from __future__ import annotations

from gateway.planner.advice import advice
from gateway.planner.arrivals import Arrivals
from gateway.planner.counted import counted
from gateway.planner.lengths import NEAR, Lengths
from gateway.planner.workload import Workload

BARS = " ▁▂▃▄▅▆▇█"


def as_text(found: Workload) -> str:
    when = found.arrivals
    skipped = f", {found.skipped} without an answer left out" if found.skipped else ""
    lines = [
        f"{found.name} ({found.format}): {counted(when.requests, 'request')} in "
        f"{when.span_s:.0f} s, {when.rate:.2f}/s{skipped}",
        *_arrivals(when),
        "",
        f"{'tokens':<10}{'mean':>8}{'p10':>8}{'p50':>8}{'p90':>8}{'p99':>8}{'most':>9}{'CV':>6}"
        "   nearest law",
        _lengths("prompts", found.input),
        _lengths("answers", found.output),
        f"prompt tokens per answer token: {found.ratio:.1f}{_uncached(found.uncached_ratio)}; "
        f"correlation of the two lengths {found.correlation:.2f}",
        *_who(found),
        *_reuse(found),
        "",
        *(f"- {sentence}" for sentence in advice(found)),
    ]
    return "\n".join(lines)


def _arrivals(when: Arrivals) -> list[str]:
    most = max(window.requests for window in when.windows) or 1
    bars = "".join(BARS[round(w.requests / most * 8)] for w in when.windows)
    rows = [("as recorded", when.raw)]
    if when.tick_s:
        rows.append((f"spread over ticks of {when.tick_s:g} s", when.spread))
    lines = [
        f"rate over time |{bars}| busiest {when.peak_rate:.2f}/s, drift {when.drift:.0%}",
    ]
    for name, figures in rows:
        parts = [f"{s} {'-' if v is None else f'{v:.2f}'}" for s, v in figures.by_scale.items()]
        cv = "-" if figures.gap_cv is None else f"{figures.gap_cv:.2f}"
        lines.append(f"index of dispersion {', '.join(parts)}; CV of gaps {cv} ({name})")
    return lines


def _lengths(name: str, of: Lengths) -> str:
    law = of.laws[0]
    values = ", ".join(f"{key} {value:.3g}" for key, value in law.parameters.items())
    near = "" if law.distance <= NEAR else ", not near"
    return (
        f"{name:<10}{of.mean:>8.0f}{of.at['p10']:>8}{of.at['p50']:>8}{of.at['p90']:>8}"
        f"{of.at['p99']:>8}{of.most:>9}{of.cv:>6.2f}   {law.name} ({values}; KS "
        f"{law.distance:.3f}{near})"
    )


def _uncached(ratio: float | None) -> str:
    return "" if ratio is None else f", {ratio:.1f} uncached at best"


def _who(found: Workload) -> list[str]:
    lines = []
    if found.clients:
        who = found.clients
        cv = "" if who.gap_cv is None else f"; CV of a client's gaps {who.gap_cv:.1f}"
        lines.append(
            f"clients: {who.count}, the largest {who.top_share:.1%} of requests, {who.for_90} make "
            f"90 %{cv}"
        )
    if found.turns:
        deep = found.turns
        lines.append(
            f"turns ({deep.source}): {counted(deep.sessions, 'conversation')}, "
            f"{deep.mean:.2f} turns in the mean, {deep.deepest} at most; {deep.share:.1%} of "
            "requests are later turns"
        )
    return lines


def _reuse(found: Workload) -> list[str]:
    shared = found.prefixes
    if shared is None:
        return []
    sizes = "".join(f"{size // 1000:>8}k" for size in shared.curve)
    rates = "".join(f"{rate:>9.3f}" for rate in shared.curve.values())
    partly = "" if found.hashed.is_whole else f", known of {found.hashed}"
    lines = [
        "",
        f"blocks of {shared.block} tokens{partly}; {shared.shared_blocks:.1%} of their uses are of "
        f"blocks used again; the commonest first block begins {shared.top_prefix:.1%} of prompts",
        "hit rate of one least-recently-used cache by its size in tokens "
        f"(endless: {shared.endless_hit:.3f})",
        f"{'tokens':<8}{sizes}",
        f"{'hit':<8}{rates}",
    ]
    for tier in found.tiers:
        lines.append(f"{tier.name:<8} to {tier.tokens / 1e6:.2f}M tokens: {tier.hit:.3f}")
    return lines
