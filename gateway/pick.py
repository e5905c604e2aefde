"""The pick phase: which engine. Pure but for the turn of the round robin; time and seed are
arguments.

Order of things: an engine that alone can answer, else the primaries, else the backups, else the
benched ones again (nginx: when all failed, the marks are wiped and every engine is tried).
Engines that are down, fail their health checks, were asked already by this request, or are at
`max_conns` are never picked. Work per pick is native and linear in the engines at worst.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.site import policy
from native._core import Ask

PAIRS_TRIED = 4
# Reasons that speak for two engines or for one: how the latter is called.
ONE = {"cheaper": "cheaper_one", "slo": "slo_one", "forced": "no_prefill"}

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.context import Context
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import Group
    from gateway.fleet.team import Team
    from gateway.kv.routed import Routed
    from native._core import Choice


def pick(
    group: Group,
    key: bytes,
    tried: Sequence[Engine],
    now: float,
    seed: int,
    method: str = "",
) -> Engine | None:
    """An engine, or None where none may be asked.

    `key`: of `hash` and `ip_hash`; empty = there is none, and least_conn decides, never a constant.
    `now`: monotonic s. `method`: in place of the upstream's.
    """
    method = method or group.conf.balance.method
    for team in group.teams:
        engine = _from_team(team, method, key, tried, now, seed)
        if engine is not None:
            return engine
    for team in group.teams:
        if any(e.marks.benched and e not in tried for e in team.engines):
            team.forgive(now)
            engine = _from_team(team, method, key, tried, now, seed)
            if engine is not None:
                return engine
    return None


def by_prompt(
    ctx: Context, group: Group, tried: Sequence[Engine], now: float, seed: int
) -> Engine | None:
    """The engine for a request that is routed by its prompt, `Context.how` set; None where the
    prompt is not known, or decides nothing.
    """
    kv = ctx.kv
    assert kv is not None
    kv.choice = kv.prefill = None
    if kv.prompt is None:
        return None
    kv.session = policy.key(ctx.policy) or (b"" if group.key is None else group.key(ctx))
    kv.wishes, kv.slo = ctx.policy, ctx.plan.slos[group.name]
    if ctx.pinned is None:
        ctx.how = "kv"
        return weigh(group, kv, tried, now, seed)
    ctx.how = "pinned"
    engine = pinned(ctx.pinned, tried)
    if engine is not None and engine.team.scorer is not None:
        kv.choice = engine.team.scorer.at(engine.place, kv.prompt, now)
    return engine


def weigh(
    group: Group, kv: Routed, tried: Sequence[Engine], now: float, seed: int
) -> Engine | None:
    """The engine that a request with a prompt costs least, in milliseconds: `Routed.choice` says
    why. None where none may be asked, or none takes so long a prompt.
    """
    for team in group.teams:
        engine = _cheapest(team, kv, tried, now, seed)
        if engine is not None:
            return engine
    for team in group.teams:
        if any(e.marks.benched and e not in tried for e in team.engines):
            team.forgive(now)
            engine = _cheapest(team, kv, tried, now, seed)
            if engine is not None:
                return engine
    return None


def ask(team: Team, kv: Routed, mask: bytes) -> Ask | None:
    """What a request asks of the decision, for the engines of a team."""
    wishes, session, lora = kv.wishes, kv.session, kv.lora
    kv_conf = team.group.conf.kv
    slo = kv.slo or kv_conf  # of the route, or where none is known, of the upstream
    usual = slo.ttft_s == kv_conf.ttft_s and slo.tpot_s == kv_conf.tpot_s
    if usual and not (wishes or session or lora):
        return team.ask
    place = team.ring.pick(session, mask) if session else -1
    return Ask(
        overlap_weight=float(wishes.get("overlap-weight", kv_conf.overlap_weight)),
        ttft_slo_ms=float(wishes.get("ttft-slo", slo.ttft_s)) * 1000,
        tpot_slo_ms=float(wishes.get("tpot-slo", slo.tpot_s)) * 1000,
        session_place=None if place < 0 else place,
        available=None if lora is None else bytes(e.serves(lora) for e in team.engines),
    )


def _cheapest(
    team: Team, kv: Routed, tried: Sequence[Engine], now: float, seed: int
) -> Engine | None:
    may = mask(team, tried, now)
    if team.scorer is None or kv.prompt is None:
        return None
    asked = ask(team, kv, may)
    if kv.force is None:
        choice = team.scorer.select(kv.prompt, may, now, seed, asked)
    else:
        choice = _two(team, kv, may, (now, seed), asked)
    if choice is None:
        return None
    kv.choice = choice
    return _picked(team, choice.place, now)


def _two(
    team: Team, kv: Routed, may: bytes, when: tuple[float, int], asked: Ask | None
) -> Choice | None:
    """Who answers; `Routed.prefill` is who computes the prompt for it."""
    now, force = when[0], kv.force
    assert team.scorer is not None and kv.prompt is not None and force is not None
    prefills = bytearray(team.may_prefill(now))
    for engine in kv.spared:
        if engine.team is team:
            prefills[engine.place] = 0
    kv.prefill = None
    barred = False
    for left in reversed(range(PAIRS_TRIED)):
        if not left:
            prefills = bytearray(len(prefills))
        found = team.scorer.pair(kv.prompt, bytes(prefills), may, *when, asked, force)
        if found is None:
            return None
        if force < 0:
            kv.why = kv.why or "never"
        elif found.prefill is None:
            kv.why = "barred" if barred else ONE.get(found.reason, found.reason)
        else:
            kv.why = found.reason
        if found.prefill is None:
            return found.decode
        decode = team.engines[found.decode.place]
        if not team.engines[found.prefill.place].handing.bars(decode.address, now):
            kv.prefill = found.prefill
            return found.decode
        barred = True
        prefills[found.prefill.place] = 0
    return None


def pinned(engine: Engine, tried: Sequence[Engine]) -> Engine | None:
    """The one engine that can answer, or was asked for: marks do not count, being down does."""
    if engine in tried or engine.line.down or not engine.healthy:
        return None
    return engine


def _from_team(
    team: Team, method: str, key: bytes, tried: Sequence[Engine], now: float, seed: int
) -> Engine | None:
    may = mask(team, tried, now)
    if method == "round_robin":
        place = team.robin.next(team.load.room(may))
    elif method in ("hash", "ip_hash") and key:
        place = team.ring.pick(key, team.load.room(may))
    elif method == "random":
        place = team.load.random(may, seed, team.group.conf.balance.two)
    else:
        place = team.load.least(may, seed)
    return None if place < 0 else _picked(team, place, now)


def mask(team: Team, tried: Sequence[Engine], now: float) -> bytes:
    """One byte per engine of a team, 1 = may be picked."""
    if now > team.recheck:
        team.refresh(now)
    if not tried:
        return team.mask
    left = bytearray(team.mask)
    for engine in tried:
        if engine.team is team:
            left[engine.place] = 0
    return bytes(left)


def _picked(team: Team, place: int, now: float) -> Engine:
    engine = team.engines[place]
    if engine.marks.fails and engine.marks.benched:
        engine.marks.picked(now)
        team.refresh(now)
    return engine
