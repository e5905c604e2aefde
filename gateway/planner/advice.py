"""What to do about a workload: sentences, each with the figures it rests on.

Every rule is a function of the report alone that says something or nothing; a sentence names the
figure, the bound it is compared with, and the directive or tool that acts on it.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.planner.workload import Workload

BURSTY = 2.0  # index of dispersion, of arrivals without ticks
DRIFTING = 0.25
PREFIXES_PAY = 0.1  # of prompt tokens
MEMORY_LACKS = 0.05  # of prompt tokens between a cache and an endless one
GAIN_PAYS = 0.02
CONCENTRATED = 0.25
HEAVY = 1.5  # CV of lengths


def advice(found: Workload) -> list[str]:
    """Most weighty first."""
    said = (rule(found) for rule in _RULES)
    return [sentence for sentence in said if sentence]


def _prefixes(found: Workload) -> str:
    shared = found.prefixes
    if shared is None:
        return (
            "The trace has no prefixes: what caching saves is unknown. Record with kvgate, or use "
            "a trace with block hashes."
        )
    if not found.hashed.is_enough:
        return (
            f"Blocks are known of {found.hashed}: what caching saves is unknown. kvgate records "
            "them of prompts that it reads exactly, where it routes by `kv_aware`."
        )
    if shared.endless_hit < PREFIXES_PAY:
        return (
            f"Prompts share little: an endless cache would save {shared.endless_hit:.1%} of prompt "
            "tokens. Route by load (`least_conn`); kv_aware gains next to nothing here."
        )
    return (
        f"Route by cached prefix (`kv_aware`): an endless cache would save "
        f"{shared.endless_hit:.1%} of prompt tokens, in {shared.requests_hit:.0%} of requests."
    )


def _memory(found: Workload) -> str:
    shared = found.prefixes
    if shared is None or not found.hashed.is_enough:
        return ""
    if shared.endless_hit < PREFIXES_PAY or shared.half_tokens is None:
        return ""
    sizes = list(shared.curve)
    enough = next((s for s in sizes if shared.curve[s] >= 0.9 * shared.endless_hit), None)
    text = (
        f"A cache of {_tokens(shared.half_tokens)} tokens saves half of that "
        f"({shared.curve[shared.half_tokens]:.1%})"
    )
    return f"{text}; nine tenths take {_tokens(enough)}." if enough else f"{text}."


def _tiers(found: Workload) -> str:
    if not found.tiers or found.prefixes is None or not found.hashed.is_enough:
        return ""
    parts = [f"{tier.name} {tier.hit:.1%} (+{tier.gain:.1%})" for tier in found.tiers]
    last = found.tiers[-1]
    left = found.prefixes.endless_hit - last.hit
    text = f"By tier, of prompt tokens: {', '.join(parts)}"
    useless = [tier.name for tier in found.tiers[1:] if tier.gain < GAIN_PAYS]
    if useless:
        return (
            f"{text}. {' and '.join(useless)} would gain less than {GAIN_PAYS:.0%}: leave it out."
        )
    if left > MEMORY_LACKS:
        return f"{text}. A larger last tier could gain up to {left:.1%} more."
    return f"{text}. That is within {max(left, 0):.1%} of an endless cache."


def _bursts(found: Workload) -> str:
    figure = found.arrivals.spread.by_scale["1s"]
    cv = found.arrivals.spread.gap_cv
    if figure is None or cv is None:
        return ""
    if figure < BURSTY and cv < BURSTY:
        return (
            f"Arrivals are near to random (index of dispersion {figure:.2f}, CV of gaps {cv:.2f}; "
            "1 = Poisson): sizes by queueing formulas can be trusted."
        )
    return (
        f"Arrivals are bursty (index of dispersion {figure:.1f}, CV of gaps {cv:.1f}; 1 = Poisson):"
        " size by replay (`kvgate plan fit --trace`), never by the mean rate, and let `limit_conn` "
        "or a queue take the peaks."
    )


def _drift(found: Workload) -> str:
    when = found.arrivals
    if when.drift < DRIFTING:
        return ""
    return (
        f"The rate drifts: its windows differ by {when.drift:.0%}, the busiest has "
        f"{when.peak_rate:.2f} requests/s to a mean of {when.rate:.2f}. Size for the busiest, or "
        "let roles follow the load (`roles elastic`)."
    )


def _lengths(found: Workload) -> str:
    if found.input.cv < HEAVY and found.output.cv < HEAVY:
        return ""
    which, of = ("Prompts", found.input)
    if found.output.cv > found.input.cv:
        which, of = ("Answers", found.output)
    return (
        f"{which} vary widely: mean {of.mean:.0f}, p50 {of.at['p50']}, p99 {of.at['p99']} tokens "
        f"(CV {of.cv:.1f}). Means mislead: size on the distribution."
    )


def _chunks(found: Workload) -> str:
    chunk, long = found.setting.chunk_tokens, found.input.at["p99"]
    if long <= chunk:
        return ""
    return (
        f"p99 of prompts is {long} tokens, {long / chunk:.0f} steps of {chunk}: running answers "
        "stall meanwhile. `kvgate plan fit` says whether smaller chunks or separate prefill "
        "engines keep an SLO."
    )


def _ratio(found: Workload) -> str:
    text = f"{found.ratio:.0f} prompt tokens come to one of an answer"
    left = found.uncached_ratio
    if left is None:
        text += ", and what caches save of them is unknown"
    else:
        text += f", {left:.0f} that no cache could save"
    if (found.ratio if left is None else left) > 10:
        return f"{text}: prefill decides the size."
    return f"{text}: answers take most of the time, and KV memory decides the size."


def _clients(found: Workload) -> str:
    who = found.clients
    if who is None or who.top_share < CONCENTRATED:
        return ""
    text = (
        f"One of {who.count} clients sends {who.top_share:.0%} of requests, {who.for_90} send 90 %"
    )
    bursts = f", in bursts of their own (CV {who.gap_cv:.1f})" if (who.gap_cv or 0) > 1.5 else ""
    return f"{text}{bursts}. Limit by client (`limit_req` by key) so that one cannot starve others."


def _turns(found: Workload) -> str:
    deep = found.turns
    if deep is None or deep.share < 0.1:
        return ""
    if deep.source == "prefixes" and not found.hashed.is_enough:
        return ""
    how = "" if deep.source == "sessions" else " (told by their prefixes)"
    return (
        f"{deep.share:.0%} of requests are later turns of a conversation{how}, the deepest has "
        f"{deep.deepest}: a session that stays at its engine finds its KV there."
    )


_RULES: tuple[Callable[[Workload], str], ...] = (
    _prefixes, _memory, _tiers, _bursts, _drift, _lengths, _chunks, _ratio, _clients, _turns,
)  # fmt: skip


def _tokens(count: int) -> str:
    return f"{count / 1e6:g}M" if count >= 1_000_000 else f"{count / 1e3:g}k"
