"""How far an engine's picture is believed: what decides, in which order, and what changes it."""

from __future__ import annotations

import pytest

from gateway.kv import trust
from gateway.kv.board import Board
from gateway.kv.trust import APPROXIMATE, BLIND, EXACT, HEALING, Drift, Silence, Standing, Trust


def followed(stream: Standing) -> Trust:
    one = Trust()
    one.source_why, one.stream = "", stream
    return one


def test_an_engine_that_has_not_been_asked_is_blind() -> None:
    assert Trust().standing(0.0) == Standing(BLIND, trust.NOT_ASKED)


def test_an_engine_without_events_is_approximate_and_says_why() -> None:
    one = Trust()
    one.source_why = "it publishes no KV events"
    assert one.standing(0.0) == Standing(APPROXIMATE, "it publishes no KV events")


@pytest.mark.parametrize("state", [EXACT, HEALING, BLIND])
def test_else_its_stream_decides(state: str) -> None:
    assert followed(Standing(state, "r")).standing(0.0) == Standing(state, "r")


def test_tokens_that_are_not_ours_come_first() -> None:
    one = followed(Standing(EXACT))
    one.tokens_why = "its ids differ"
    assert one.standing(0.0) == Standing(APPROXIMATE, "its ids differ")
    one.unusable = True
    assert one.standing(0.0).state == BLIND
    one.tokens_why = ""
    assert one.standing(0.0).state == EXACT


def test_hits_that_contradict_the_events_end_belief_for_a_while() -> None:
    one = followed(Standing(EXACT))
    proved = [one.drift.observe(4096, 0, 16, 10.0) for _ in range(trust.ENOUGH)]
    assert proved == [False] * (trust.ENOUGH - 1) + [True]
    assert one.standing(11.0) == Standing(APPROXIMATE, trust.CONTRADICTS)
    assert not one.by_events(11.0)
    assert one.standing(10.0 + trust.DRIFT_S).state == EXACT


def test_a_few_contradictions_are_evictions() -> None:
    drift = Drift()
    for n in range(200):
        assert not drift.observe(1600, 0 if n % 4 == 0 else 1600, 16, 0.0)
    assert not drift.agrees


def test_a_difference_of_two_blocks_or_a_tenth_is_none() -> None:
    drift = Drift()
    for predicted, actual in ((1600, 1568), (160, 192), (10_000, 9_100)) * 40:
        assert not drift.observe(predicted, actual, 16, 0.0)
    assert drift.agrees


def test_prompts_that_were_never_cached_prove_nothing() -> None:
    drift = Drift()
    for _ in range(200):
        drift.observe(0, 0, 16, 0.0)
        drift.observe(16, 0, 16, 0.0)
    assert not drift.agrees


def silent(steps: list[tuple[float, int, float | None]], quiet_s: float = 60.0) -> list[bool]:
    one = Silence()
    return [bool(one.look(sent, heard, now, quiet_s)) for now, sent, heard in steps]


def test_no_event_for_60_s_under_traffic_is_reported_and_an_event_ends_it() -> None:
    traffic = [(float(t), 5 * t, 1.0) for t in range(0, 70, 5)]
    said = silent([*traffic, (71.0, 400, 70.5), (72.0, 405, 70.5)])
    assert said == [False] * 13 + [True] + [False, False]


def test_an_idle_engine_is_not_silent() -> None:
    assert not any(silent([(float(t), 100, None) for t in range(0, 1000, 10)]))


def test_a_few_requests_long_ago_are_no_traffic() -> None:
    steps = [(0.0, 0, None), (1.0, 3, None)] + [(float(t), 3, None) for t in range(2, 300, 10)]
    assert not any(silent(steps))
    burst = [(0.0, 0, None), (1.0, 50, None), (400.0, 60, None), (410.0, 61, None)]
    assert not any(silent(burst)), "what lies before a long pause does not count"


def test_quiet_0_switches_it_off() -> None:
    assert not any(silent([(float(t), 5 * t, None) for t in range(0, 700, 5)], quiet_s=0.0))


def test_restarts_again_and_again_are_several_engines() -> None:
    one = followed(Standing(EXACT))
    told = [(0.0, 1), (20.0, 2), (40.0, 3), (70.0, 4), (90.0, 5), (95.0, 6), (96.0, 7)]
    seen = [one.unrest.look(restarts, now) for now, restarts in told]
    assert seen == [False] * 6 + [True], "five within a minute"
    one.restless = seen[-1]
    assert one.standing(96.0) == Standing(APPROXIMATE, trust.RESTLESS)
    assert one.unrest.look(7, 131.0) is False


def test_the_worst_word_of_all_workers_is_seen_and_a_dead_workers_is_not() -> None:
    board = Board(3, 8)
    board.bind(1)
    board.say(5, 1, "well")
    board.bind(2)
    board.say(5, 4, "its port is closed: ü" + 300 * "x")
    board.say(4, 2, "a neighbour")
    word, reason = board.highest(5)
    assert word == 4 and reason.startswith("its port is closed: ü") and len(reason) < 200
    assert board.highest(3) == (0, "")
    board.say(5, 4, "short")
    assert board.highest(5) == (4, "short")
    board.retire(2)
    assert board.highest(5) == (1, "well") and board.highest(4) == (0, "")


def test_a_word_is_new_to_the_log_once_over_all_workers() -> None:
    board = Board(2, 4, 0)
    assert board.speak(1, 3) and not board.speak(1, 3) and board.speak(1, 1)
    assert board.highest(1) == (0, "")
    board.forget(1)
    assert board.speak(1, 1)
