"""The simulator from Python: recorded traffic, what routing makes of it, and situations that have
gone wrong elsewhere."""

from __future__ import annotations

import json
import random
from array import array
from pathlib import Path

import pytest

from native._core import Fit, Simulated, Trace, policies, simulate

RECORDED = Path(__file__).parents[1] / "vectors" / "mooncake_conversation_400.jsonl"
BLOCK = 512
SLO = {"ttft_slo_ms": 2000.0, "tpot_slo_ms": 50.0}


def trace(rows: list[tuple[float, int, int, list[int]]], block: int = BLOCK) -> Trace:
    """(arrival in s, tokens in, tokens out, blocks) of each request."""
    return Trace(
        block,
        array("d", (row[0] for row in rows)).tobytes(),
        array("I", (row[1] for row in rows)).tobytes(),
        array("I", (row[2] for row in rows)).tobytes(),
        array("I", (len(row[3]) for row in rows)).tobytes(),
        array("Q", (block for row in rows for block in row[3])).tobytes(),
    )


@pytest.fixture(scope="module")
def recorded() -> Trace:
    rows = []
    for line in RECORDED.read_text().splitlines():
        row = json.loads(line)
        blocks = row["hash_ids"]
        rows.append((row["timestamp"] / 1e3, row["input_length"], row["output_length"], blocks))
    return trace(rows)


def in_time(recorded: Trace, policy: str, shared: bool = False) -> float:
    runs = [
        simulate(
            recorded, policy, Fit("h100-70b-tp4"), speed=1.5, spread_s=3.0, seed=seed,
            shared=shared, **SLO,
        )
        for seed in range(3)
    ]  # fmt: skip
    return sum(run.good(2.0, 0.05) / run.requests for run in runs) / len(runs)


def test_on_recorded_traffic_no_policy_serves_more_requests_in_time(recorded: Trace) -> None:
    ours = in_time(recorded, "kvgate")
    others = {policy: in_time(recorded, policy) for policy in policies()[1:]}
    assert ours > max(others.values()) + 0.04, (ours, others)
    assert ours > 0.95 * in_time(recorded, "kvgate", shared=True)


def test_the_same_seed_is_the_same_run_and_another_is_not(recorded: Trace) -> None:
    def run(seed: int) -> Simulated:
        return simulate(recorded, "kvgate", Fit(), spread_s=3.0, seed=seed, **SLO)

    assert run(1).outcomes() == run(1).outcomes() != run(2).outcomes()


def hot(seed: int) -> Trace:
    """Four in five requests have one prefix of 8k in front; four engines at two thirds of their
    prefill rate if each computes the prefix once."""
    draw = random.Random(seed)
    rows = []
    at_s = 0.0
    for row in range(1500):
        at_s += draw.expovariate(24.0)
        fresh = [1_000 + row * 100 + i for i in range(4)]
        if draw.random() < 0.8:
            blocks = [*range(16), *fresh]
        else:
            blocks = [900_000_000 + row * 100 + i for i in range(16)] + fresh
        rows.append((at_s, len(blocks) * BLOCK, draw.randint(20, 200), blocks))
    return trace(rows)


def test_a_hot_prefix_neither_overloads_one_engine_nor_loses_its_hits() -> None:
    for seed in range(2):
        rows = hot(seed)
        for slo in ({}, SLO):
            run = simulate(rows, "kvgate", Fit("h100-8b-tp1"), engines=4, seed=seed, **slo)
            busy = run.busy_s
            assert max(busy) / (sum(busy) / 4) <= 1.5, (busy, run.spread)
            assert run.hit_tokens >= 0.7 * rows.reusable_tokens()
            # By overlap alone it would be one engine's.
            assert max(run.spread) < 0.5 * run.requests


def test_workers_that_share_their_load_route_as_well_as_one(recorded: Trace) -> None:
    def good(gateways: int, shared_load: bool) -> int:
        run = simulate(
            recorded, "kvgate", Fit("h100-70b-tp4"), speed=1.5, spread_s=3.0, gateways=gateways,
            shared_load=shared_load, **SLO,
        )  # fmt: skip
        return run.good(2.0, 0.05)

    one = good(1, True)
    assert good(4, True) > 0.97 * one
    assert good(4, False) < good(4, True)


def test_a_wrong_profile_is_corrected_by_what_is_seen(recorded: Trace) -> None:
    def good(believed: Fit | None) -> int:
        run = simulate(
            recorded, "kvgate", Fit("h100-70b-tp4"), speed=1.5, spread_s=3.0, believed=believed,
            **SLO,
        )  # fmt: skip
        return run.good(2.0, 0.05)

    right = good(None)
    assert good(Fit("neutral")) > 0.93 * right
    assert good(Fit("a100-70b-tp4")) > 0.93 * right


def test_figures_of_a_run_agree_with_its_outcomes(recorded: Trace) -> None:
    run = simulate(recorded, "least_requests", Fit("h100-8b-tp1"), engines=3, speed=2.0)
    words = array("d", run.outcomes())
    ttft, tpot = words[2::4], words[3::4]
    assert len(ttft) == run.requests == len(recorded) and run.refused == 0
    assert run.mean("ttft") == pytest.approx(sum(ttft) / len(ttft))
    assert run.quantiles("tpot", [0.0, 1.0]) == [min(tpot), max(tpot)]
    assert run.quantiles("ttft", [0.5])[0] == sorted(ttft)[round(399 * 0.5)]
    good = sum(a <= 0.3 and b <= 0.02 for a, b in zip(ttft, tpot, strict=True))
    assert run.good(0.3, 0.02) == good and run.good(0, 0) == run.requests
    assert sum(run.spread) == run.requests
    assert [words[1::4].count(at) for at in range(3)] == run.spread


def test_what_cannot_be_is_refused_by_name(recorded: Trace) -> None:
    fit = Fit()
    with pytest.raises(ValueError, match="no policy is called `best`; there are kvgate, round"):
        simulate(recorded, "best", fit)
    with pytest.raises(ValueError, match="`engines` must be from 1 to 4096, got 0"):
        simulate(recorded, "random", fit, engines=0)
    with pytest.raises(ValueError, match="`speed` must be"):
        simulate(recorded, "random", fit, speed=float("nan"))
    with pytest.raises(ValueError, match="a time is ttft, tpot or e2e"):
        simulate(recorded, "random", fit).mean("itl")
    with pytest.raises(ValueError, match="row 0: 600 tokens in and 1 out need 2 blocks of 512"):
        trace([(0.0, 600, 1, [1])])
    with pytest.raises(ValueError, match="row 1: arrives at 1 s, the one before at 2 s"):
        trace([(2.0, 10, 1, [1]), (1.0, 10, 1, [1])])


def test_a_request_longer_than_an_engines_memory_is_refused_not_waited_for() -> None:
    rows = trace([(0.0, 5000, 10, list(range(10))), (1.0, 500, 10, [99])])
    run = simulate(rows, "kvgate", Fit(), engines=2, capacity_tokens=4096)
    assert (run.requests, run.refused, run.good(0, 0)) == (2, 1, 1)
