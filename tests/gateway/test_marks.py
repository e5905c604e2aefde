"""What benches an engine, and what must not."""

import pytest

from gateway.fleet.marks import FAILED, NEUTRAL, OK, Marks, judge


def test_benched_after_max_fails_within_the_window() -> None:
    marks = Marks(3, 10.0)
    assert not marks.fail(1.0)
    assert not marks.fail(2.0)
    assert marks.fail(3.0)
    assert marks.benched and marks.until == 13.0


def test_failures_far_apart_do_not_add_up() -> None:
    marks = Marks(2, 10.0)
    for now in (0.0, 20.0, 40.0, 60.0):
        assert not marks.fail(now)


def test_one_trial_then_benched_again_or_free() -> None:
    marks = Marks(1, 10.0)
    marks.fail(0.0)
    marks.picked(11.0)
    assert marks.until == 21.0
    assert not marks.fail(12.0)
    assert marks.benched and marks.until == 22.0
    assert marks.succeed()
    assert not marks.benched


def test_client_mistakes_between_failures_do_not_hide_them() -> None:
    marks = Marks(3, 10.0)
    for second in range(3):
        for status in (400, 502):
            word = judge(None, status, unsent_reuse=False, retry_after=False)
            if word == FAILED:
                marks.fail(float(second))
            elif word == OK:
                marks.succeed()
    assert marks.benched


def test_zero_switches_marks_off() -> None:
    marks = Marks(0, 10.0)
    for now in range(100):
        marks.fail(float(now))
    assert not marks.benched


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (None, 200, OK), (None, 304, OK), (None, 400, NEUTRAL), (None, 429, NEUTRAL),
        (None, 500, NEUTRAL),
        (None, 401, NEUTRAL), (None, 502, FAILED), (None, 503, FAILED), (None, 504, FAILED),
        ("connect", 0, FAILED), ("connect_timeout", 0, FAILED), ("first_byte_timeout", 0, FAILED),
        ("reset", 0, FAILED), ("eof", 0, FAILED), ("reset", 200, NEUTRAL), ("bad_reply", 0, FAILED),
        ("client_gone", 0, NEUTRAL), ("client_gone", 200, NEUTRAL), ("cancelled", 0, NEUTRAL),
        ("read_timeout", 200, NEUTRAL), ("total_timeout", 0, NEUTRAL),
        ("client_timeout", 0, NEUTRAL),
    ],
)  # fmt: skip
def test_what_a_leg_says_of_its_engine(error: str | None, status: int, word: str) -> None:
    assert judge(error, status, unsent_reuse=False, retry_after=False) == word


def test_a_closed_idle_connection_is_nobodys_fault() -> None:
    assert judge("reset", 0, unsent_reuse=True, retry_after=False) == NEUTRAL


def test_shedding_load_politely_is_no_failure() -> None:
    assert judge(None, 503, unsent_reuse=False, retry_after=True) == NEUTRAL
