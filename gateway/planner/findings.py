"""What replays of layouts say: whether disaggregation pays, what binds, what would change it.

Each finding is computed from runs, and says which. Margins are in points of attainment.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.load.goodput import wilson
from gateway.planner.counted import counted
from gateway.planner.fit import Goal, Means, Option, Planner, attained

SWING = 0.3
TIE = 0.01  # margins below it are noise of the seed
# Times per token between which layouts change places, in seconds.
CROSSINGS = tuple(ms / 1e3 for ms in range(10, 201))
RELAXED = 10.0  # an SLO is not relaxed beyond so many times itself


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of the best disaggregated layout against the best aggregated one. `crossover_s`: times per
    token at which they change places."""

    sentence: str
    margin: float
    crossover_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Swing:
    """One thing changed, the layouts as they were: attainment of the best of either kind."""

    what: str
    aggregated: float
    disaggregated: float | None


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The SLO that would have to be so, all else as it is, for the target; None: none would do.
    `factor`: by which both together would have to grow."""

    ttft_s: float | None
    tpot_s: float | None
    factor: float | None


def of_kind(options: list[Option], is_split: bool) -> Option | None:
    """The best one."""
    return next((one for one in options if one.layout.is_split == is_split), None)


def verdict(options: list[Option], goal: Goal) -> Verdict:
    """The crossover judges the same runs by other times per token."""
    one, two = of_kind(options, False), of_kind(options, True)
    if one is None or two is None or one.run is None or two.run is None:
        return Verdict("One engine cannot be split: disaggregation takes two.", 0.0, ())
    margin = attained(two.run, goal) - attained(one.run, goal)
    crossings = []
    last = 0
    for tpot_s in CROSSINGS:
        other = replace(goal, tpot_s=tpot_s)
        gap = attained(two.run, other) - attained(one.run, other)
        sign = (gap > TIE) - (gap < -TIE)
        if sign and last and sign != last:
            crossings.append(tpot_s)
        last = sign or last
    if abs(margin) <= TIE:
        text = "Disaggregation makes no difference here"
    elif margin > 0:
        text = "Disaggregation pays here"
    else:
        text = "Disaggregation does not pay here"
    text += (
        f": {two.layout.name} keeps the SLO for {attained(two.run, goal):.1%} of requests, "
        f"{one.layout.name} for {attained(one.run, goal):.1%} ({margin * 100:+.1f} points)"
    )
    if crossings:
        limits = " and ".join(f"{s * 1e3:.0f}" for s in crossings)
        text += f"; with other limits per token the better of the two changes at {limits} ms"
    return Verdict(f"{text}.", margin, tuple(crossings))


def bottleneck(option: Option, goal: Goal) -> str:
    """What is missed most, and what is fullest."""
    run, said = option.run, option.predicted
    if run is None or said is None:
        return "nothing was replayed"
    first = 1 - run.good(goal.ttft_s, 0.0) / run.requests
    token = 1 - run.good(0.0, goal.tpot_s) / run.requests
    text = f"{_missed(first, token)}; prefill is busy {min(said.prefill_use, 9.99):.0%}"
    if option.layout.is_split:
        text += f", links {said.link_use:.0%}"
    running = f"{said.running:.{0 if said.running >= 10 else 1}f}"
    text += f", {running} answers run at once on an engine that answers"
    if run.preempted:
        text += f"; put back for want of KV memory: {counted(run.preempted, 'request')}"
    return text


def _missed(first: float, token: float) -> str:
    """Of the SLOs for the first token and per token, the shares of requests that missed them."""
    if not first and not token:
        return "nothing, as no request missed the SLO"
    shares = f"first token {first:.1%} of requests, per token {token:.1%}"
    if first == token:
        return f"the first token and time per token are missed alike ({shares})"
    which = "the first token" if first > token else "time per token"
    return f"{which} is missed most ({shares})"


def swings(planner: Planner, options: list[Option], means: Means) -> list[Swing]:
    """Rate, bandwidth and hit rate 30 % down and up."""
    one, two = of_kind(options, False), of_kind(options, True)
    assert one is not None
    found = []
    for share in (1 - SWING, 1 + SWING):
        sign = f"{share - 1:+.0%}"
        cases = [(f"rate {sign}", replace(means, speed=means.speed * share))]
        if two is not None:
            cases.append((f"bandwidth {sign}", replace(means, link_gb_s=means.link_gb_s * share)))
        memory = _memory_for(planner, one, means, share)
        if memory:
            text = f"hit rate {sign} (by {memory / means.memory():.2f} of the KV memory)"
            cases.append((text, replace(means, kv_tokens=memory)))
        for at, (what, other) in enumerate(cases):
            planner.told(what, ((share > 1) * len(cases) + at) / (2 * len(cases)))
            split = _at(planner, two, other) if two is not None else None
            found.append(Swing(what, _at(planner, one, other), split))
    return found


def _at(planner: Planner, option: Option, means: Means) -> float:
    return attained(planner.replay(option.layout, means), planner.goal)


def _memory_for(planner: Planner, option: Option, means: Means, share: float) -> int:
    """KV tokens of an engine with which one cache of all would hit so much more or less; 0: none
    would."""
    trace, engines = planner.recorded.trace, option.layout.engines
    now = means.memory()
    sizes = [round(now * 2 ** (step / 4)) for step in range(-16, 25)]
    rates = [sum(array("I", one)) for one in trace.hits([engines * size for size in sizes])]
    wanted = rates[sizes.index(now)] * share
    if not wanted:
        return 0
    # Prompts must still fit.
    longest = 2 * max(row.input + row.output for row in planner.found.rows)
    if share < 1:
        fits = [s for s, rate in zip(sizes, rates, strict=True) if rate <= wanted and s >= longest]
        return max(fits, default=0)
    return min((s for s, rate in zip(sizes, rates, strict=True) if rate >= wanted), default=0)


def relaxation(option: Option, goal: Goal) -> Relaxation:
    """Either SLO alone, or both, in the run as it is."""
    run = option.run
    assert run is not None

    def least(given: float, made: Callable[[float], Goal]) -> float | None:
        if not given or attained(run, made(given * RELAXED)) < goal.target:
            return None
        low, high = given, given * RELAXED
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (low, middle) if attained(run, made(middle)) >= goal.target else (
                middle, high,
            )  # fmt: skip
        return high

    return Relaxation(
        least(goal.ttft_s, lambda s: replace(goal, ttft_s=s)),
        least(goal.tpot_s, lambda s: replace(goal, tpot_s=s)),
        least(1.0, lambda by: replace(goal, ttft_s=goal.ttft_s * by, tpot_s=goal.tpot_s * by)),
    )


def goodput(option: Option, goal: Goal, gpus: int) -> float:
    """Requests in time per second and GPU."""
    run = option.run
    assert run is not None
    return run.good(goal.ttft_s, goal.tpot_s) / run.end_s / (option.layout.engines * gpus)


def interval(option: Option, goal: Goal) -> tuple[float, float]:
    run = option.run
    assert run is not None
    return wilson(run.good(goal.ttft_s, goal.tpot_s), run.requests)
