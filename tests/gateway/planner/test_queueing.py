"""Formulas against cases with known answers, and against a replay of the same trace."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gateway.planner.queueing import Layout, Traffic, erlang_c, predict, wait_s
from native._core import Fit

VECTORS = Path(__file__).parents[2] / "vectors"


def test_erlang_c_has_its_tabled_values() -> None:
    assert erlang_c(1, 0.5) == pytest.approx(0.5)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(10, 8.0) == pytest.approx(0.4092, abs=1e-4)


def test_one_server_is_pollaczek_and_khinchine() -> None:
    # M/D/1: rho s / 2(1 - rho); M/M/1 with its CV of one: twice that.
    constant = [2.0] * 10
    assert wait_s(0.25, 1, constant, 1.0)[0] == pytest.approx(0.5 * 2 / (2 * 0.5))
    assert wait_s(0.6, 1, constant, 1.0) == (math.inf, 1.0)


def traffic(rate: float, hits: int = 0) -> Traffic:
    return Traffic(rate, [8192] * 100, [hits] * 100, [200] * 100)


FIT = Fit("h100-70b-tp4", None, 8192)


def test_more_engines_wait_less_and_cached_prompts_take_less() -> None:
    few, many = (predict(FIT, Layout(p + 2, p), traffic(2.0)) for p in (2, 4))
    assert math.isfinite(few.ttft_s) and many.ttft_s < few.ttft_s
    assert predict(FIT, Layout(4, 2), traffic(2.0, 4096)).ttft_s < few.ttft_s
    assert predict(FIT, Layout(4, 1), traffic(2.0)).ttft_s == math.inf


def test_slow_links_and_an_slo_are_seen() -> None:
    quick = predict(FIT, Layout(8, 4, link_gb_s=50), traffic(2.0), 1.0)
    slow = predict(FIT, Layout(8, 4, link_gb_s=5), traffic(2.0), 1.0)
    assert slow.transfer_s > 8 * quick.transfer_s
    assert slow.in_time < quick.in_time <= 1.0


def test_prompts_slow_answers_where_an_engine_does_both() -> None:
    apart = predict(FIT, Layout(8, 4), traffic(4.0))
    together = predict(FIT, Layout(8), traffic(4.0))
    assert together.tpot_s > apart.tpot_s
    small = predict(Fit("h100-70b-tp4", None, 1024), Layout(8, 0, 1024), traffic(4.0))
    assert small.tpot_s < together.tpot_s
