"""What the page is told, and what it calls a change."""

from __future__ import annotations

from types import SimpleNamespace as Fake
from typing import Any

import orjson

from gateway.dashboard.figures import Totals
from gateway.dashboard.readings import strictest, totals
from gateway.dashboard.receipts import EVERY_S, KEPT, Receipts
from gateway.dashboard.snapshot import Reading, changes, snapshot

BOUNDS = {"ttft": (0.1, 0.2), "tpot": (0.01, 0.02)}


def engine(address: str = "e:1", **more: Any) -> dict[str, Any]:
    plain = {
        "address": address, "role": "both", "state": "up", "why": "", "kv": None,
        "load": {"dispatched": 0},
    }  # fmt: skip
    return plain | more


def reading(at: float, *engines: dict[str, Any], **more: Any) -> Reading:
    group = {"models": ["m"], "balance": "kv", "tokenizer": None, "engines": list(engines)}
    status = {"generation": more.pop("generation", 1), "reload_error": more.pop("error", ""),
              "upstreams": {"u": group}}  # fmt: skip
    return Reading(at, 1000.0 + at, status, **more)


def test_rates_are_of_the_stretch_between_two_readings() -> None:
    before = reading(0, engine(load={"dispatched": 10}), totals={"u": Totals(completed=10)},
                     matched={"device": 5}, prompt_tokens=10)  # fmt: skip
    now = reading(
        10, engine(load={"dispatched": 30}), engine("e:2", role="prefill"),
        totals={"u": Totals(completed=30, good=20, histograms={"ttft": (20, 0, 0)})},
        slo_s={"u": {"ttft": 0.1, "tpot": 0.0}}, matched={"device": 65}, prompt_tokens=110,
    )  # fmt: skip
    made = snapshot(now, before, BOUNDS, [{"at": 1}, {"at": 2}], [{"id": "a"}, {"id": "b"}])
    upstream = made["upstreams"]["u"]
    assert made["version"] == 1 and made["over_s"] == 10 and made["planner"] == {}
    assert upstream["figures"]["completed_per_s"] == 2
    assert upstream["figures"]["ttft_within"] == 1 and upstream["figures"]["goodput_per_s"] == 2
    assert [e["sent_per_s"] for e in upstream["engines"]] == [2, None]  # the second is new
    assert upstream["roles"] == {"prefill": 1, "decode": 0, "both": 1}
    assert made["kv"] == {"prompt_tokens": 100, "matched": {"device": 60}, "compared": {}}
    assert made["changes"] == [{"at": 2}, {"at": 1}]  # the newest first
    assert [one["id"] for one in made["decisions"]] == ["b", "a"]
    orjson.dumps(made)


def test_the_first_reading_has_no_rates() -> None:
    only = reading(5, engine(), totals={"u": Totals(completed=10)})
    figures = snapshot(only, only, BOUNDS)["upstreams"]["u"]
    assert figures["figures"]["completed_per_s"] is None
    assert figures["engines"][0]["sent_per_s"] is None


def test_changes_name_what_changed_and_why() -> None:
    kv = {"worst": "exact"}
    before = reading(0, engine(kv=kv), engine("e:2"), engine("e:3"))
    now = reading(
        1, engine(role="decode", kv={"worst": "blind"}),
        engine("e:2", state="unhealthy", why="no answer"), engine("e:4"), generation=2,
    )  # fmt: skip
    found = [(one["kind"], one["where"], one["what"]) for one in changes(now, before)]
    assert found == [
        ("configuration", "", "generation 2 is loaded"),
        ("role", "u e:1", "both → decode"),
        ("trust", "u e:1", "exact → blind"),
        ("state", "u e:2", "up → unhealthy: no answer"),
        ("engine", "u e:4", "added"),
        ("engine", "u e:3", "removed"),
    ]
    assert changes(now, now) == []
    failed = reading(2, engine(), error="line 3")
    assert changes(failed, before)[0]["what"] == "not loaded: line 3"


def test_routes_of_an_upstream_are_summed() -> None:
    def series(count: int) -> Any:
        return Fake(
            ends=[count, 1, 1, 0, 0, 1], words=[0, 2, 1],
            input_tokens=10, cached_tokens=4, output_tokens=3, metered=2,
            histograms={"ttft": ([1, 2, 0], 0.1), "tpot": ([0, 0, 1], 0.1)},
        )  # fmt: skip

    found = totals([series(3), series(4)])
    assert (found.completed, found.left, found.refused, found.metered) == (7, 2, 4, 4)
    assert (found.good, found.missed["queue"], found.missed["error"]) == (4, 2, 0)
    assert (found.input_tokens, found.cached_tokens, found.output_tokens) == (20, 8, 6)
    assert found.histograms == {"ttft": (2, 4, 0), "tpot": (0, 0, 2)}


def test_of_routes_that_differ_the_strictest_slo_is_shown() -> None:
    none = {"ttft": 0.0, "tpot": 0.0, "e2el": 0.0}
    assert strictest([]) == strictest([none]) == none
    routes = [none, {"ttft": 2.0, "tpot": 0.0, "e2el": 9.0}, {"ttft": 0.5, "tpot": 0.05, "e2el": 0}]
    assert strictest(routes) == {"ttft": 0.5, "tpot": 0.05, "e2el": 9.0}


def test_decisions_are_sampled_and_bounded() -> None:
    receipts = Receipts()

    def request(number: int, at: float, asked: bool = True) -> Any:
        target = Fake(upstream="u", address="e:1") if asked else None
        return Fake(
            t_end=at, engine=target, leg=None, request_id=str(number), model="m" * 500, how="kv",
            attempts=(), status=200, termination="--", request=Fake(t_head=at - 1.0), kv=None,
        )  # fmt: skip

    receipts.ended(request(0, 1.0, asked=False))  # no engine was picked: no decision
    assert not receipts.kept
    for number in range(100):
        receipts.ended(request(number, 1.0 + number * EVERY_S / 10))
    assert 9 <= len(receipts.kept) <= 11
    for number in range(100, 100 + 2 * KEPT):
        receipts.ended(request(number, 10.0 + number))
    assert len(receipts.kept) == KEPT and receipts.kept[-1]["id"] == str(99 + 2 * KEPT)
    assert len(receipts.kept[-1]["model"]) == 80 and receipts.kept[-1]["total_ms"] == 1000
