"""Roles in the words of the configuration, moved by the load of a ledger."""

from __future__ import annotations

from itertools import count, pairwise

import pytest

from gateway.planner.roles import Move, Roles, Wanted
from native._core import Fit, Ledger, Prompt, Scorer, Ticket

WANTED = Wanted(ttft_s=2.0, tpot_s=0.025, dwell_s=10.0)
_fresh = count(1)


def scorer(engines: int) -> Scorer:
    ledger = Ledger(1, 8)
    ledger.bind(0)
    handles = [ledger.add_engine() for _ in range(engines)]
    fits = [Fit("h100-70b-tp4")] * engines
    none = [0] * engines
    return Scorer(ledger, None, handles, [-1] * engines, [1] * engines, none, fits, none)


def load(scorer: Scorer, tokens: int, per_engine: int, now: float, running: bool) -> list[Ticket]:
    """So many requests of as many tokens at every engine."""
    tickets = []
    for place in range(len(scorer)):
        for _ in range(per_engine):
            prompt = Prompt.of_list([next(_fresh)] + [7] * (tokens - 1))
            tickets.append(scorer.at(place, prompt, now).start(now))
            if running:
                tickets[-1].first(now)
    return tickets


def looks(roles: Roles, scorer: Scorer, rate: float, times: range) -> list[tuple[int, Move]]:
    found = ((s, roles.look(scorer, rate, float(s))) for s in times)
    return [(s, move) for s, move in found if move is not None]


def test_prompts_that_are_too_many_keep_engines_to_themselves_until_they_are_over() -> None:
    fleet, roles = scorer(4), Roles(WANTED, ["both"] * 4, ["both"] * 4)
    tickets = load(fleet, 16_000, 60, 100.0, running=False)
    moves = looks(roles, fleet, 3.0, range(100, 130))
    assert moves and all(move.after == "prefill" for _, move in moves)
    assert all(move.predicted < move.pressure for _, move in moves)
    times = [s for s, _ in moves]
    assert all(b - a >= WANTED.dwell_s for a, b in pairwise(times))
    for ticket in tickets:
        ticket.end(140.0, 1)
    # The load of the past fades.
    back = looks(roles, fleet, 0.1, range(400, 480))
    assert [move.after for _, move in back] == ["both"] * len(moves)
    assert roles.roles == ("both",) * 4


def test_engines_of_one_kind_stay_and_nothing_moves_without_load() -> None:
    roles = Roles(WANTED, ["prefill", "decode", "both"], ["prefill", "decode", "both"])
    fleet = scorer(3)
    assert looks(roles, fleet, 0.0, range(100)) == []
    tickets = load(fleet, 16_000, 60, 100.0, running=False)
    looks(roles, fleet, 3.0, range(100, 200))
    assert roles.roles[:2] == ("prefill", "decode")
    del tickets


def test_a_move_by_hand_is_taken_over_and_stays_for_the_dwell() -> None:
    fleet, roles = scorer(3), Roles(WANTED, ["both"] * 3, ["both"] * 3)
    roles.adopt(["decode", "both", "both"], 50.0)
    assert roles.roles == ("decode", "both", "both")
    moves = looks(roles, fleet, 0.0, range(50, 80))
    assert [(move.place, move.after) for _, move in moves] == [(0, "both")]
    assert moves[0][0] >= 50 + WANTED.dwell_s


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="SLO"):
        Roles(Wanted(0.0, 0.025, 10.0), ["both"] * 2, ["both"] * 2)
    with pytest.raises(ValueError, match="may answer"):
        Roles(WANTED, ["prefill"] * 2, ["prefill"] * 2)
    with pytest.raises(ValueError, match="roles of 2 engines"):
        Roles(WANTED, ["both"] * 2, ["both"] * 2).look(scorer(3), 1.0, 1.0)
