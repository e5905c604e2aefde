"""Which engines prefill, answer, or do both: decided from load and time alone, as in the simulator.

A thin face of `native.RoleControl`, whose source derives the prediction; here engines have the
words of the configuration: prefill, decode, both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from native._core import RoleControl, Scorer

BOTH = "both"
ROLES = ("prefill", "decode", BOTH)
_LETTERS = {"prefill": "p", "decode": "d", BOTH: "m"}
_NAMES = {"prefill": "prefill", "decode": "decode", "mixed": BOTH}


@dataclass(frozen=True, slots=True)
class Wanted:
    """SLOs and times, in seconds; `drain_s`: how long old work of an engine is waited for."""

    ttft_s: float
    tpot_s: float
    dwell_s: float

    @property
    def drain_s(self) -> float:
        return 2 * self.dwell_s


@dataclass(frozen=True, slots=True)
class Move:
    """Pressure: of a predicted time over its SLO, the worse of the two; before, and then."""

    place: int
    before: str
    after: str
    pressure: float
    predicted: float


class Roles:
    """The roles of one team. Only engines declared `both` change theirs."""

    def __init__(self, wanted: Wanted, declared: Sequence[str], roles: Sequence[str]) -> None:
        """`roles`: what each of the `declared` is now. Raises ValueError for what cannot be."""
        self.wanted, self.declared = wanted, tuple(declared)
        self._control = RoleControl(
            "".join(_LETTERS[role] for role in roles),
            bytes(role == BOTH for role in declared),
            ttft_slo_ms=wanted.ttft_s * 1e3,
            tpot_slo_ms=wanted.tpot_s * 1e3,
            dwell_s=wanted.dwell_s,
            drain_s=wanted.drain_s,
        )

    @property
    def roles(self) -> tuple[str, ...]:
        words = {letter: word for word, letter in _LETTERS.items()}
        return tuple(words[letter] for letter in self._control.roles)

    def adopt(self, roles: Sequence[str], now: float) -> None:
        """Somebody else has moved engines: their dwell begins."""
        for place, (old, new) in enumerate(zip(self.roles, roles, strict=True)):
            if old != new:
                self._control.set(place, _LETTERS[new], now)

    def look(self, scorer: Scorer, rate: float, now: float) -> Move | None:
        """At the load of the team; `rate`: requests per second of late."""
        moved = self._control.look(scorer, rate, now)
        if moved is None:
            return None
        place, before, after, pressure, predicted = moved
        return Move(place, _NAMES[before], _NAMES[after], pressure, predicted)
