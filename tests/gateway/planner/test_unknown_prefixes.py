"""Recordings in which blocks of some requests are unknown: they are not counted as unshared."""

from __future__ import annotations

import pytest

from gateway.planner.advice import advice
from gateway.planner.replay import Setup, as_json, as_table, compare
from gateway.planner.sharing import turns
from gateway.planner.trace_files import Rows
from gateway.planner.trace_formats import Row
from gateway.planner.workload import Setting, analyse
from gateway.planner.workload_html import as_html
from gateway.planner.workload_text import as_text

DEVICE = Setting((("device", 1_000_000),))


def made(*of: Row) -> Rows:
    return Rows(of, 16, "made", "made", 0.0, 0)


def mixed(hashed: int, of: int) -> Rows:
    """The first `hashed` of the rows say their blocks: all begin with the same nine of ten."""
    shared = list(range(9))
    return made(
        *(Row(n, 160, 10, [*shared, 100 + n] if n < hashed else None, "c") for n in range(of))
    )


def test_requests_without_hashes_are_unknown_and_not_unshared() -> None:
    """Of a recording in which few prompts were read, nothing follows for caches."""
    found = analyse(mixed(20, 150), DEVICE)
    assert (found.hashed.requests, found.hashed.of) == (20, 150)
    assert found.prefixes is not None and found.turns is not None
    # 19 of the 20 find nine blocks of ten.
    assert found.prefixes.endless_hit == pytest.approx(0.9 * 19 / 20)
    assert found.prefixes.top_prefix == 1.0 and found.tiers[0].hit == pytest.approx(0.855)
    assert found.uncached_ratio is None
    said = " ".join(advice(found))
    assert "Blocks are known of 20 of 150 requests (13.3% of prompt tokens)" in said
    assert "what caching saves is unknown" in said
    for word in ("least_conn", "endless cache", "By tier", "A cache of", "no cache could save"):
        assert word not in said
    text = as_text(found)
    assert "known of 20 of 150 requests (13.3% of prompt tokens); " in text
    assert "uncached at best" not in text
    assert "whose blocks are known: 20 of 150 requests" in as_html(found)


def test_a_few_requests_without_hashes_spoil_no_advice() -> None:
    found = analyse(mixed(145, 150), DEVICE)
    said = advice(found)
    assert found.prefixes is not None and found.uncached_ratio is not None
    assert found.prefixes.endless_hit == pytest.approx(0.9 * 144 / 145)
    assert said[0].startswith("Route by cached prefix (`kv_aware`)")
    assert "known of 145 of 150 requests (96.7% of prompt tokens)" in as_text(found)


def test_long_prompts_that_are_unknown_weigh_by_their_tokens() -> None:
    few = [Row(n, 16_000, 10) for n in range(5)]
    found = analyse(made(*mixed(95, 95).rows, *few), DEVICE)
    assert "Blocks are known of 95 of 100 requests (16.0% of prompt tokens)" in advice(found)[0]


def test_turns_are_told_among_prompts_whose_blocks_are_known() -> None:
    talk = [Row(0, 32, 1, [1, 2]), Row(1, 48, 1, [1, 2, 3])]
    found = turns([*talk, *(Row(n, 99, 1) for n in range(2, 50))], 16)
    assert found is not None and (found.sessions, found.deepest, found.share) == (1, 2, 0.5)


@pytest.mark.parametrize(
    ("hashed", "said"),
    [
        (20, "assumed: prefixes: requests without block hashes (130 of 150) share nothing"),
        (0, "assumed: prefixes: requests without block hashes (150 of 150) share nothing"),
        (150, ""),
    ],
)
def test_a_replay_says_what_it_takes_them_for(hashed: int, said: str) -> None:
    recorded, setup = mixed(hashed, 150).packed(), Setup(engines=2)
    results = compare(recorded, setup, ["kvgate"])
    table = as_table(recorded, setup, results)
    assert said in table and ("assumed:" in table) == bool(said)
    trace = as_json(recorded, setup, results)["trace"]
    assert isinstance(trace, dict) and trace["hashed"]["requests"] == hashed
