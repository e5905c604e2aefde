"""The search for the highest rate, on engines whose answer is known."""

import pytest

from gateway.load.goodput import Goodput, wilson
from gateway.load.search import Search


def found(good: int, counted: int) -> Goodput:
    return Goodput(good, counted, {}, 1.0, 1.0, good / counted, *wilson(good, counted))


def searched(limit: float, first: float, requests: int = 1000) -> Search:
    """Everything is in time up to `limit`, and nothing beyond it."""
    search = Search(0.9, first)
    while (rate := search.next()) is not None:
        search.take(rate, found(requests if rate <= limit else 0, requests))
    return search


@pytest.mark.parametrize("first", [0.5, 7.0, 200.0])
def test_it_finds_the_limit_from_either_side(first: float) -> None:
    search = searched(7.3, first)
    low, high = search.low, search.high
    assert low is not None and high is not None
    assert low.rate <= 7.3 < high.rate <= low.rate * 1.06
    assert search.verdict == "resolved"


def test_bounds_near_the_target_are_not_resolved() -> None:
    search = Search(0.9, 8.0)
    while (rate := search.next()) is not None:
        search.take(rate, found(92 if rate <= 8.0 else 88, 100))
    assert search.low is not None and search.low.rate == 8.0
    assert search.verdict == "unresolved"


def test_it_gives_up_where_there_is_no_limit() -> None:
    assert searched(1e12, 1.0).verdict == "unresolved"
    never = searched(0.0, 1.0)
    assert never.low is None and never.verdict == "unresolved"


def test_a_rate_that_failed_by_chance_below_one_that_was_kept_does_not_bound() -> None:
    search = Search(0.9, 4.0)
    search.take(4.0, found(0, 100))
    search.take(2.0, found(100, 100))
    search.take(2.8, found(10, 100))
    search.take(3.5, found(100, 100))
    assert search.low is not None and search.high is not None
    assert (search.low.rate, search.high.rate) == (3.5, 4.0)
