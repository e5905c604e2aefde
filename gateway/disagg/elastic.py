"""Moves engines between prefill, decode and both as the load asks: upstreams with `roles elastic`.

Invariants: one process does it, the monitor; it decides nothing but when and with what the
controller looks; who is moved by hand stays for the dwell, as one that was moved by load.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import exp
from time import monotonic
from typing import TYPE_CHECKING

from gateway.disagg import roles
from gateway.errors import BadRequest
from gateway.log_lines import NOTICE
from gateway.logs import log
from gateway.planner.roles import Move, Roles, Wanted
from native._core import Fit, Scorer

if TYPE_CHECKING:
    from gateway.disagg.counts import DisaggCounts
    from gateway.fleet.engines import EngineTable, Group
    from gateway.fleet.ledger import Ledger
    from gateway.fleet.team import Team

LOOK_S = 1.0
FADE_S = 40.0  # of the rate, as of the load


class _Watch:
    """One team under `roles elastic`. `beat` begins anew for other engines or another wish."""

    def __init__(self, group: Group, team: Team, ledger: Ledger) -> None:
        kv = group.conf.kv
        fit = Fit(kv.profile, list(kv.fit), kv.chunk_tokens)
        count = len(team.engines)
        self.key = self.key_of(group, team)
        self.team, self._ledger = team, ledger
        self._scorer = Scorer(
            ledger.core,
            None,
            [engine.slot for engine in team.engines],
            [-1] * count,
            [engine.line.weight for engine in team.engines],
            [0] * count,
            [fit] * count,
            [kv.capacity_tokens] * count,
        )
        wanted = Wanted(kv.ttft_s, kv.tpot_s, group.conf.disaggregation.dwell_s)
        self._roles = Roles(
            wanted, [engine.line.role for engine in team.engines], self._now_roles()
        )
        self._sent, self._rate, self._at = self._dispatched(), 0.0, monotonic()

    @staticmethod
    def key_of(group: Group, team: Team) -> object:
        engines = tuple((engine.slot, engine.line) for engine in team.engines)
        return group.conf.kv, group.conf.disaggregation, engines

    def _now_roles(self) -> list[str]:
        return [roles.role_of(self._ledger, engine) for engine in self.team.engines]

    def _dispatched(self) -> int:
        engines = self.team.engines
        return sum(self._ledger.core.load(engine.slot).dispatched for engine in engines)

    def look(self, now: float) -> Move | None:
        sent, elapsed = self._dispatched(), max(now - self._at, 1e-3)
        keep = exp(-elapsed / FADE_S)
        self._rate = self._rate * keep + (sent - self._sent) / elapsed * (1.0 - keep)
        self._sent, self._at = sent, now
        self._roles.adopt(self._now_roles(), now)
        return self._roles.look(self._scorer, self._rate, now)


class Elastic:
    def __init__(self, table: EngineTable, counts: DisaggCounts) -> None:
        self._table, self._counts = table, counts
        self._watches: dict[str, _Watch] = {}
        self._task: asyncio.Task[None] | None = None

    def sync(self) -> None:
        """Upstreams or their engines have changed. Needs a running loop."""
        former, self._watches = self._watches, {}
        for name, group in self._table.groups.items():
            if group.conf.disaggregation.roles != "elastic" or not group.teams[0].engines:
                continue
            team, known = group.teams[0], former.get(name)
            if known is None or known.key != _Watch.key_of(group, team):
                try:
                    known = _Watch(group, team, self._table.ledger)
                except ValueError as error:
                    log.error("upstream %s: roles stay as they are: %s", name, error)
                    continue
            known.team = team
            self._watches[name] = known
        if self._watches and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                self.look(monotonic())
            except Exception:  # whatever it is, the next look may be better than none ever again
                log.exception("roles stay as they are for now: fault while looking at the load")
            await asyncio.sleep(LOOK_S)

    def look(self, now: float) -> None:
        for name, watch in self._watches.items():
            move = watch.look(now)
            if move is None:
                continue
            engine = watch.team.engines[move.place]
            try:
                roles.move(self._table.ledger, engine, move.after)
            except BadRequest as error:  # moved by hand meanwhile
                log.warning("upstream %s: %s stays: %s", name, engine.address, error)
                continue
            self._counts.add(f"role/{move.after}")
            log.log(
                NOTICE,
                "upstream %s: %s moves from %s to %s: pressure %.2f, predicted %.2f",
                *(name, engine.address, move.before, move.after, move.pressure, move.predicted),
            )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
