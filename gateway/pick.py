"""The third phase: which engine. Pure but for the turn of the round robin; time and seed are
arguments.

Order of things: an engine that alone can answer, else the primaries, else the backups, else the
benched ones again (nginx: when all failed, the marks are wiped and every engine is tried).
Engines that are down, fail their health checks, were asked already by this request, or are at
`max_conns` are never picked. Work per pick is native and linear in the engines at worst.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.engine import Engine
    from gateway.engines import Group, Team


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


def pinned(engine: Engine, tried: Sequence[Engine]) -> Engine | None:
    """The one engine that can answer, or was asked for: marks do not count, being down does."""
    if engine in tried or engine.line.down or not engine.healthy:
        return None
    return engine


def _from_team(
    team: Team, method: str, key: bytes, tried: Sequence[Engine], now: float, seed: int
) -> Engine | None:
    if now > team.recheck:
        team.refresh(now)
    mask = team.mask
    if tried:
        left = bytearray(mask)
        for engine in tried:
            if engine.team is team:
                left[engine.place] = 0
        mask = bytes(left)
    if method == "round_robin":
        place = team.robin.next(team.load.room(mask))
    elif method in ("hash", "ip_hash") and key:
        place = team.ring.pick(key, team.load.room(mask))
    elif method == "random":
        place = team.load.random(mask, seed, team.group.conf.balance.two)
    else:
        place = team.load.least(mask, seed)
    if place < 0:
        return None
    engine = team.engines[place]
    if engine.marks.fails and engine.marks.benched:
        engine.marks.picked(now)
        team.refresh(now)
    return engine
