"""Rates, percentiles and shares of a stretch of time, where the exact answer is known."""

from __future__ import annotations

import pytest

from gateway.dashboard.figures import Totals, between, figures, quantile, within

BOUNDS = (0.1, 0.2, 0.4)


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ((0, 0, 0, 0), 0.5, None),
        ((10, 0, 0, 0), 0.5, 0.05),  # straight through the bucket, from 0
        ((5, 5, 0, 0), 0.5, 0.1),
        ((5, 5, 0, 0), 0.75, pytest.approx(0.15)),
        ((0, 0, 4, 0), 0.25, pytest.approx(0.25)),
        ((0, 0, 0, 3), 0.99, 0.4),  # beyond the last bound: no more than that is known
        ((99, 0, 0, 1), 0.99, 0.1),
        ((1, 0, 1, 0), 0.99, pytest.approx(0.396)),
    ],
)
def test_quantile(counts: tuple[int, ...], share: float, value: object) -> None:
    assert quantile(BOUNDS, counts, share) == value


@pytest.mark.parametrize(
    ("counts", "limit", "value"),
    [
        ((0, 0, 0, 0), 0.2, None),
        ((1, 1, 1, 1), 0.0, None),  # there is no limit
        ((1, 1, 1, 1), 0.2, 0.5),  # a bound: exact
        ((1, 1, 2, 0), 0.3, 0.75),  # half of the third bucket
        ((1, 1, 1, 1), 9.0, 0.75),  # how far the last ones are beyond is not known
    ],
)
def test_within(counts: tuple[int, ...], limit: float, value: object) -> None:
    assert within(BOUNDS, counts, limit) == pytest.approx(value)


def test_counts_that_went_back_count_as_nothing() -> None:
    assert between((1, 5), (3, 2)) == (0, 3)
    assert between((1, 5), ()) == (1, 5)


def test_ten_requests_a_second_of_which_three_keep_the_slo() -> None:
    """100 requests in 10 s, of which 30 kept both SLOs: 3 per second; errors count as missed."""
    now = Totals(
        completed=100,
        failed=5,
        good=30,
        missed={"prefill": 45, "decode": 25, "error": 5},
        metered=80,
        input_tokens=2000,
        cached_tokens=500,
        output_tokens=1000,
        histograms={"ttft": (30, 70, 0, 0), "tpot": (60, 40, 0, 0)},
    )
    bounds = {"ttft": BOUNDS, "tpot": BOUNDS}
    found = figures(now, Totals(), 10.0, bounds, {"ttft": 0.1, "tpot": 0.1})
    assert found["completed_per_s"] == 10 and found["failed_per_s"] == 0.5
    assert found["ttft_within"] == 0.3 and found["tpot_within"] == 0.6
    assert found["goodput_per_s"] == 3 and found["attainment"] == 30 / 105
    assert found["missed_prefill_per_s"] == 4.5 and found["missed_decode_per_s"] == 2.5
    assert found["hit_rate"] == 0.25 and found["output_tokens_per_s"] == 100
    assert found["ttft_p50"] == pytest.approx(0.1 + 0.1 * 20 / 70)


def test_nothing_is_not_zero() -> None:
    bounds = {"ttft": BOUNDS, "tpot": BOUNDS}
    for seconds in (0.0, 1.0):
        found = figures(Totals(), Totals(), seconds, bounds, {"ttft": 1.0})
        assert found["ttft_p95"] is None and found["hit_rate"] is None
        assert found["attainment"] is None
        assert found["goodput_per_s"] == (None if not seconds else 0)
        assert found["completed_per_s"] == (None if not seconds else 0)
