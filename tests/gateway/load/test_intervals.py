"""Estimates and intervals: exact figures, and how often an interval holds what it is of."""

import random
from statistics import fmean

import pytest

from gateway.load.intervals import EXACT_MAX, quantile, spread


def test_quantiles_lie_between_values_linearly() -> None:
    ordered = [1.0, 2.0, 4.0, 8.0]
    assert [quantile(ordered, share) for share in (0.0, 0.5, 0.75, 1.0)] == [1.0, 3.0, 5.0, 8.0]
    assert quantile([5.0], 0.99) == 5.0


def test_few_requests_have_no_interval() -> None:
    found = spread([[1.0], [2.0], [6.0]])
    assert found is not None and (found.mean.value, found.mean.low, found.most) == (3.0, None, 6.0)
    assert spread([[], []]) is None


def test_an_interval_holds_its_figure_about_as_often_as_it_says() -> None:
    chance = random.Random(1)
    hits = {"mean": 0, "p50": 0}
    runs = 60
    for run in range(runs):
        values = [[chance.expovariate(1.0)] for _ in range(400)]
        found = spread(values, seed=run)
        assert found is not None
        for name, one, truth in (("mean", found.mean, 1.0), ("p50", found.quantiles[0.5], 0.6931)):
            assert one.low is not None and one.high is not None
            hits[name] += one.low <= truth <= one.high
    assert all(count / runs >= 0.83 for count in hits.values())


def test_values_that_know_of_each_other_have_a_wider_interval() -> None:
    chance = random.Random(2)
    level, tied = 0.0, []
    for _ in range(2000):
        level = 0.99 * level + chance.gauss(0, 1)
        tied.append([100 + level])
    free = tied[:]
    chance.shuffle(free)

    def width(values: list[list[float]]) -> float:
        found = spread(values)
        assert found is not None and found.mean.low is not None and found.mean.high is not None
        return found.mean.high - found.mean.low

    assert width(tied) > 3 * width(free)


def test_many_values_are_estimated_exactly_and_their_intervals_within_a_percent() -> None:
    chance = random.Random(3)
    values = [[chance.uniform(1, 2) for _ in range(20)] for _ in range(EXACT_MAX // 10)]
    found = spread(values)
    ordered = sorted(value for one in values for value in one)
    assert found is not None and found.count == len(ordered)
    assert found.mean.value == pytest.approx(fmean(ordered))
    p99 = found.quantiles[0.99]
    assert p99.value == quantile(ordered, 0.99)
    assert p99.low is not None and 1.95 < p99.low <= p99.value
