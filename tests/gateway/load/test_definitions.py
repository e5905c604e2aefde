"""Metrics of requests whose exact answer is known."""

import pytest

from gateway.load.goodput import Slo, goodput, misses, wilson
from gateway.load.measure import Asked, Measured, has_payload, measure


def test_a_stream_of_one_token_per_chunk() -> None:
    found = measure(Asked(1.0, (1.5, 1.75, 2.25), tokens=3, choice_s=1.25))
    assert (found.ttft_s, found.ttft_choice_s, found.e2el_s) == (0.5, 0.25, 1.25)
    assert (found.itl_s, found.tpot_s, found.counted) == ((0.25, 0.5), 0.375, False)


def test_several_tokens_per_chunk_change_tpot_and_not_itl() -> None:
    found = measure(Asked(0.0, (1.0, 2.0), tokens=9))
    assert (found.itl_s, found.tpot_s) == ((1.0,), 0.125)


def test_one_token_has_no_tpot_and_keeps_its_slo() -> None:
    found = measure(Asked(0.0, (0.5,), tokens=1))
    assert (found.tpot_s, found.itl_s) == (None, ())
    assert misses(found, Slo(tpot_s=0.001)) == ()


def test_events_stand_for_tokens_that_nobody_counted() -> None:
    found = measure(Asked(0.0, (1.0, 1.5, 2.0)))
    assert (found.tokens, found.counted, found.tpot_s) == (3, True, 0.5)


def test_an_answer_without_output_breaks_what_needs_some() -> None:
    found = measure(Asked(0.0, (), choice_s=0.5))
    assert (found.ttft_s, found.ttft_choice_s, found.e2el_s) == (None, 0.5, None)
    assert misses(found, Slo(ttft_s=9, e2el_s=9)) == ("ttft", "e2el")


@pytest.mark.parametrize(
    ("delta", "payload"),
    [
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": ""}, False),
        ({}, False),
        ({"content": "a"}, True),
        ({"reasoning": "a"}, True),
        ({"reasoning_content": "a"}, True),
        ({"tool_calls": [{"function": {"name": "f"}}]}, False),
        ({"tool_calls": [{"function": {"arguments": "{"}}]}, True),
    ],
)
def test_what_is_payload(delta: dict[str, object], payload: bool) -> None:
    assert has_payload({"choices": [{"index": 0, "delta": delta}]}) is payload
    assert not has_payload({"choices": [], "usage": {"completion_tokens": 3}})
    assert has_payload({"choices": [{"text": "a"}]})


def requests_of_a_second() -> list[Measured]:
    """Ten, of which seven break one SLO each, by turns."""
    slow = [(2.0, 2.1), (0.5, 1.5), (0.5, 0.6)]  # TTFT, TPOT; the third is good
    shapes = [slow[0], slow[1]] * 3 + [slow[0]] + [slow[2]] * 3
    return [measure(Asked(0.0, shape, tokens=2)) for shape in shapes]


def test_ten_a_second_of_which_seven_break_an_slo() -> None:
    found = goodput(requests_of_a_second(), Slo(ttft_s=1.0, tpot_s=0.2), 1.0)
    assert (found.throughput, found.goodput, found.attainment) == (10.0, 3.0, 0.3)
    assert found.missed == {"ttft": 4, "tpot": 3}


def test_failures_count_and_what_was_left_or_cut_does_not() -> None:
    ends = [measure(Asked(0.0, (0.1,), end)) for end in ("failed", "cancelled", "cut")]
    found = goodput([*requests_of_a_second(), *ends], Slo(ttft_s=1.0, tpot_s=0.2), 1.0)
    assert (found.counted, found.good, found.missed["error"]) == (11, 3, 1)
    assert found.throughput == 10.0


def test_an_slo_is_kept_at_its_bound() -> None:
    assert misses(measure(Asked(0.0, (0.5,))), Slo(ttft_s=0.5, e2el_s=0.5)) == ()


def test_the_interval_of_a_share() -> None:
    low, high = wilson(3, 10)
    assert (round(low, 4), round(high, 4)) == (0.1078, 0.6032)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(10, 10)[1] == pytest.approx(1.0) and wilson(0, 10)[0] == 0.0


def test_a_window_has_a_length() -> None:
    with pytest.raises(ValueError, match="window"):
        goodput([], Slo(), 0.0)
