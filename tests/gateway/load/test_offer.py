"""What is to be sent: times and lengths that a seed and a law give, and what prompts share."""

from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from gateway.load.offer import Lengths, Mix, Offer, Offers, spread

FIXED = Lengths(100, 100)


def mix(**options: float) -> Mix:
    return Mix(**{"rate": 10.0, "requests": 4000, "input": FIXED, "output": FIXED, **options})


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_their_mean_and_their_spread(cv: float) -> None:
    gaps = [b.at_s - a.at_s for a, b in pairwise(mix(cv=cv).offers(1).requests)]
    assert fmean(gaps) == pytest.approx(0.1, rel=0.15)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.15, abs=1e-6)


def test_a_seed_is_a_load() -> None:
    assert mix(requests=50).offers(3) == mix(requests=50).offers(3)
    assert mix(requests=50).offers(3) != mix(requests=50).offers(4)


def test_lengths_follow_their_law() -> None:
    drawn = [one.input for one in mix(input=Lengths(1000, 1 << 20, 0.8)).offers(1).requests]
    assert fmean(drawn) == pytest.approx(1000, rel=0.1)
    assert pstdev(drawn) / fmean(drawn) == pytest.approx(0.8, rel=0.2)
    drawn = [one.output for one in mix(output=Lengths(5, 7)).offers(1).requests]
    assert set(drawn) == {5, 6, 7}


def test_prompts_share_what_they_are_told_to() -> None:
    found = mix(requests=200, input=Lengths(90, 90), prefix=64, prefixes=2).offers(1)
    heads = {tuple(one.blocks[:4]) for one in found.requests}
    assert heads == {(0, 1, 2, 3), (4, 5, 6, 7)}
    tails = [block for one in found.requests for block in one.blocks[4:]]
    assert len(tails) == len(set(tails)) == 200 * 2 and min(tails) >= 8


def test_a_load_at_another_rate_is_the_same_load() -> None:
    offers = Offers([Offer(0.0, 1, 1), Offer(1.0, 2, 2), Offer(4.0, 3, 3)])
    faster = offers.at_rate(2.0)
    assert [one.at_s for one in faster.requests] == [0.0, 0.25, 1.0]
    assert faster.rate == 2.0 and [one.input for one in faster.requests] == [1, 2, 3]


def test_ticks_are_spread() -> None:
    times = spread([3.0] * 1000, 3.0, 1)
    assert min(times) >= 3.0 and max(times) < 6.0 and fmean(times) == pytest.approx(4.5, abs=0.2)
    assert spread([3.0], 0.0, 1) == [3.0]
