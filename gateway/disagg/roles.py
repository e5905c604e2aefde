"""Roles as all processes see them: a word in shared memory per engine that does both kinds of
work.

Invariants: an engine that was declared for one kind keeps it, whatever its word says; a team keeps
an engine that may prefill and one that may answer; a move shows in every process at its next look.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from gateway import errors
from gateway.planner.roles import BOTH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import EngineTable
    from gateway.fleet.ledger import Ledger

# Words of the ledger by their number; 0 = none was said.
_WORDS = (BOTH, BOTH, "prefill", "decode")
_NUMBERS = {BOTH: 1, "prefill": 2, "decode": 3}


def role_of(ledger: Ledger, engine: Engine) -> str:
    """What an engine does now."""
    if engine.line.role != BOTH:
        return engine.line.role
    return _WORDS[ledger.core.role(engine.slot)]


def hear(ledger: Ledger, engines: Iterable[Engine], now: float) -> None:
    """Takes over where engines were moved to."""
    for engine in engines:
        role = role_of(ledger, engine)
        if engine.role != role:
            engine.role = role
            engine.team.refresh(now)


def move(ledger: Ledger, engine: Engine, role: str) -> None:
    """Says it to all. Raises BadRequest for an engine that may not have the role."""
    if role not in _NUMBERS:
        raise errors.BadRequest(what=f'"role" is {", ".join(_NUMBERS)}, not "{role}"')
    if engine.line.role != BOTH:
        what = f"{engine.address} is declared role={engine.line.role}: only role=both may be moved"
        raise errors.BadRequest(what=what)
    if role != BOTH and not engine.team.group.conf.disaggregation.wanted:
        what = (
            f"upstream {engine.upstream} does not disaggregate: {role} alone would be idle; "
            'hint: "disaggregate auto;" in it'
        )
        raise errors.BadRequest(what=what)
    others = [role_of(ledger, one) for one in engine.team.engines if one is not engine]
    if all(other == role for other in others) and role != BOTH:
        what = f"no engine would be left for anything but {role}"
        raise errors.BadRequest(what=what)
    ledger.core.set_role(engine.slot, _NUMBERS[role])


def answer(table: EngineTable, body: dict[str, Any] | None) -> dict[str, Any]:
    """Every engine's role, after `{"upstream", "server", "role"}` is done. Raises BadRequest."""
    if body is not None:
        group = table.groups.get(str(body.get("upstream")))
        engines = () if group is None else group.engines
        found = [engine for engine in engines if engine.address == body.get("server")]
        if not found:
            what = f'no server "{body.get("server")}" in upstream "{body.get("upstream")}"'
            raise errors.BadRequest(what=what)
        move(table.ledger, found[0], str(body.get("role")))
        hear(table.ledger, found, monotonic())
    return {
        name: {
            "roles": group.conf.disaggregation.roles,
            "engines": [
                {
                    "server": engine.address,
                    "declared": engine.line.role,
                    "role": role_of(table.ledger, engine),
                    "in_flight": table.ledger.in_flight(engine.slot),
                }
                for engine in group.engines
            ],
        }
        for name, group in table.groups.items()
    }
