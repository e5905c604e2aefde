"""The ledger of one transfer: a prompt computed on one engine, to be fetched once by another.

    asked → held → taken → used
        └→ failed  └→ expired → released, or orphaned

What a prefill engine answers names blocks of its memory. They may be fetched once, and only while
they are kept: afterwards a fetch gives whatever lies there by then, with status 200. So the
parameters come out of here once, before their time, and never again.

Invariants: `take` gives the parameters to one leg at most; only a leg of which provably nothing was
sent may give them back. `let_go` gives them, also late, to one that fetches nothing, and only if no
other can have them. Pure: times are monotonic seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from engines.vllm.handoff import Handed
    from gateway.fleet.engine import Engine
    from native.relay import Leg

State = Literal["asked", "held", "taken", "used", "failed", "expired", "released", "orphaned"]
ENDS = ("used", "failed", "released", "orphaned")
MARGIN = 0.1  # of a lease, for clocks, and for a request's way into an engine
MARGIN_MAX_S = 3.0


class Spent(RuntimeError):
    """Parameters were asked for a second time, or too late."""


def deadline(asked: float, lease_s: float) -> float:
    """Until when blocks may be fetched. Counted from when the prefill was asked for: when it ended
    is not known here, as a reply may be long on its way (a stopped process, a full queue)."""
    return asked + lease_s - margin(lease_s)


def margin(lease_s: float) -> float:
    """How long before the end of a lease nobody is sent to fetch any more."""
    return min(lease_s * MARGIN, MARGIN_MAX_S)


class Transfer:
    """One prompt on its way from `prefill` to whoever takes it."""

    __slots__ = ("_handed", "asked_at", "deadline", "held_at", "peer", "prefill", "state",
                 "taken_at")  # fmt: skip

    def __init__(self, prefill: Engine, lease_s: float, now: float) -> None:
        self.prefill: Engine = prefill
        self.asked_at = now
        self.deadline = deadline(now, lease_s)
        self.held_at = self.taken_at = 0.0
        self.state: State = "asked"
        self._handed: Handed | None = None

    def hold(self, handed: Handed, now: float) -> None:
        """The prefill engine has answered."""
        assert self.state == "asked"
        self._handed, self.held_at, self.state = handed, now, "held"

    def anew(self, handed: Handed) -> Transfer:
        """The same blocks, which nobody can have fetched: what was told of them was wrong."""
        other = Transfer(self.prefill, 0.0, self.asked_at)
        other.deadline = self.deadline
        other.hold(handed, self.asked_at)
        return other

    def fresh(self, now: float) -> bool:
        """Whether the parameters are there and may be used."""
        if self.state == "held" and now > self.deadline:
            self.state = "expired"
        return self.state == "held"

    def take(self, now: float) -> Handed:
        """The parameters, for one leg. Raises Spent."""
        if not self.fresh(now) or self._handed is None:
            raise Spent(f"the parameters are {self.state}")
        self.state, self.taken_at = "taken", now
        return self._handed

    def let_go(self) -> Handed | None:
        """The parameters, to have the blocks let go; None where another leg may have them."""
        if self.state not in ("held", "expired"):
            return None
        self.state, handed, self._handed = "released", self._handed, None
        return handed

    def give_back(self, leg: Leg) -> None:
        """A leg ended before anything of it was sent: it is as if it had not been. Raises Spent
        for any other."""
        if self.state != "taken" or (leg.t_start and not leg.unsent):
            raise Spent("they may have been used")
        self.state = "held"

    def end(self, state: State) -> None:
        """What became of it."""
        self.state, self._handed = state, None
