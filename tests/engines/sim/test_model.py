"""Step times against the figures the profiles were fitted to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.sim.model import PROFILES, profile

# 8k prefill ms; ITL ms at one request and at 64 with 2 000 tokens each (overhead apart)
FIGURES = {
    "h100-8b-tp1": (200, 6.2, 12.6), "h200-8b-tp1": (199, 4.9, 9.5),
    "a100-8b-tp1": (557, 12.0, 23.1), "h100-70b-tp4": (577, 15.0, 20.7),
    "h100-70b-tp8": (344, 10.2, 13.7), "a100-70b-tp4": (1372, 27.3, 40.0),
}


@pytest.mark.parametrize("name", FIGURES)
def test_profiles_give_the_measured_times(name: str) -> None:
    p, (prefill, single, batch) = profile(name), FIGURES[name]
    assert p.step_ms([(8192, 0)], 0, 0) - p.overhead_ms == pytest.approx(prefill, rel=0.06)
    assert p.step_ms([], 1, 100) - p.overhead_ms == pytest.approx(single, rel=0.06)
    assert p.step_ms([], 64, 64 * 2000) - p.overhead_ms == pytest.approx(batch, rel=0.06)


def test_a_cached_prefix_costs_attention_only() -> None:
    p = profile("h100-8b-tp1")
    assert p.step_ms([(2048, 6144)], 0, 0) - p.overhead_ms == pytest.approx(53, rel=0.04)


def test_a_mixed_step_adds_up() -> None:
    p = profile("h100-8b-tp1")
    assert p.step_ms([(2048, 0)], 64, 64 * 1000) - p.overhead_ms == pytest.approx(49.7, rel=0.06)


def test_zero_takes_no_time_and_fixed_takes_what_it_says() -> None:
    assert profile("zero").step_ms([(9999, 9)], 99, 99999) == 0
    assert profile("fixed:20").step_ms([(9999, 9)], 99, 99999) == 20


def test_constants_of_a_profile_can_be_others() -> None:
    base = profile("h100-8b-tp1")
    found = profile("h100-8b-tp1,b=0.5,ovh=2")
    assert found == replace(base, b_ms=0.5, overhead_ms=2.0)
    assert profile("fixed:20,ovh=3").step_ms([], 1, 0) == 23


@pytest.mark.parametrize(
    "name", ["h100", "fixed:", "fixed:x", "zero,b", "zero,b=", "zero,kv_tokens=1"]
)
def test_an_unknown_profile_is_named_with_those_there_are(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown profile `{name}`") as error:
        profile(name)
    assert all(known in str(error.value) for known in PROFILES)
