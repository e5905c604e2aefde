"""What is said of one request: how it ended, what was measured, which part broke its SLO."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from math import isclose
from types import SimpleNamespace as Fake
from typing import Any

import pytest
from harness import waiting

from gateway.context import CLIENT_LEFT
from gateway.load.goodput import Slo, goodput, misses
from gateway.load.measure import Asked, measure
from gateway.slo import CAUSES, ENDS, NO_SLO, WORDS, Answer, blame, end_of, judge, slo_of
from gateway.spent import PARTS, Moments, parts
from gateway.stats import OUTCOMES
from native._core import Stats
from native.relay import stream_times

# A stream of five tokens in three events, a role before and a finish after them: what its meter
# has, and what is made of it. In the order of Stats.TIMES.
METER = {"first": 11.0, "last": 13.0, "answer": 12.0, "choice": 10.5, "choice_last": 13.5}
NONE = -1.0


def times(tokens: int = 5, complete: bool = True, **meter: float) -> dict[str, float]:
    made = stream_times(10.0, **{**METER, **meter}, tokens=tokens, duration=9.0, complete=complete)
    return dict(zip(Stats.TIMES, made, strict=True))


def test_closed_sets_fit_their_cells() -> None:
    assert len(ENDS) <= Stats.ENDS and len(WORDS) <= Stats.WORDS
    assert WORDS[0] == "" and set(CAUSES) < set(WORDS)


@pytest.mark.parametrize(
    ("status", "termination", "end"),
    [
        (200, "--", "completed"), (304, "--", "completed"), (400, "--", "refused"),
        (404, "GR", "refused"), (429, "--", "limited"), (429, "GQ", "limited"),
        (503, "GQ", "overloaded"), (529, "--", "overloaded"), (500, "--", "failed"),
        (502, "SH", "failed"), (200, "SD", "failed"), (200, "GD", "failed"),
        (200, "CD", "cancelled"), (CLIENT_LEFT, "CH", "cancelled"), (408, "CR", "cancelled"),
        (0, "GR", "failed"),
    ],
)  # fmt: skip
def test_every_request_ends_in_one_way(status: int, termination: str, end: str) -> None:
    assert termination in OUTCOMES and end in ENDS
    assert end_of(status, termination) == end


def test_a_stream_is_measured_from_its_arrival() -> None:
    assert times() == {
        "ttft": 1.0, "tpot": 0.5, "e2el": 3.0, "duration": 9.0, "ttfo": 2.0,
        "choice_ttft": 0.5, "choice_tpot": 0.75, "choice_e2el": 3.5,
    }  # fmt: skip


def test_one_token_has_no_tpot_and_one_chunk_of_several_none_to_wait_for() -> None:
    one = times(tokens=1, last=11.0)
    assert (one["tpot"], one["choice_tpot"], one["e2el"]) == (NONE, NONE, 1.0)
    assert times(tokens=4, last=11.0)["tpot"] == 0.0
    answer = Answer("completed", tuple(one.values()))
    assert misses(answer, Slo(tpot_s=0.001)) == ()  # type: ignore[arg-type]


def test_what_does_not_apply_is_not_there() -> None:
    cut = times(complete=False)
    assert (cut["ttft"], cut["tpot"], cut["e2el"], cut["choice_e2el"]) == (1.0, 0.5, NONE, NONE)
    silent = times(first=0.0, last=0.0, answer=0.0)
    assert {name for name, value in silent.items() if value != NONE} == {"duration"}
    other = times(choice=-1.0, choice_last=0.0)  # a stream without choices
    assert {name for name, value in other.items() if value == NONE} == {
        "choice_ttft", "choice_tpot", "choice_e2el",
    }  # fmt: skip
    assert times(answer=0.0)["ttfo"] == NONE  # it was reasoning, all of it
    assert times(choice_last=0.0)["choice_e2el"] == 3.0


def test_definitions_are_those_of_the_load_generator() -> None:
    rnd = random.Random(5)
    for _ in range(300):
        due = rnd.uniform(1, 5)
        chunks = sorted(due + rnd.expovariate(1) for _ in range(rnd.randint(0, 6)))
        choice = min([*chunks, due + rnd.random()])
        tokens = rnd.choice([-1, 0, 1, 2, 30])
        asked = measure(Asked(due, chunks, "completed", tokens, choice))
        first, last = (chunks[0], chunks[-1]) if chunks else (0.0, 0.0)
        counted = len(chunks) if tokens < 0 else tokens
        made = stream_times(due, first, last, first, choice, last, counted, 0.0, True)
        answer = Answer("completed", made)
        for name in ("ttft_s", "tpot_s", "e2el_s"):
            one, other = getattr(answer, name), getattr(asked, name)
            assert one == other or isclose(one, other, abs_tol=1e-9), name
        assert not chunks or isclose(made[5], asked.ttft_choice_s or 0.0, abs_tol=1e-9)


def test_parts_follow_one_another_and_add_up() -> None:
    alone = Moments(10.0, 11.0, 14.0, 20.0, tokenise_s=0.25, waited=0.5)
    assert parts(alone) == (0.75, 0.25, 1.5, 1.5, 0.0, 6.0)
    two = Moments(10.0, 11.0, 14.0, 20.0, prefilled=13.0)
    assert parts(two) == (1.0, 0.0, 0.0, 2.0, 1.0, 6.0)
    early = Moments(10.0, 9.0, 9.5, 12.0, tokenise_s=3.0)  # the body was still on its way
    assert parts(early) == (0.0, 0.0, 0.0, 0.5, 0.0, 2.5)
    rnd = random.Random(3)
    for _ in range(200):
        a, b, c, d, e = sorted(rnd.uniform(0, 9) for _ in range(5))
        m = Moments(a, b, d, e, rnd.uniform(0, 2), rnd.choice([0.0, c, e + 1]), rnd.random())
        assert min(parts(m)) >= 0 and isclose(sum(parts(m)), e - a)


@pytest.mark.parametrize(
    ("slo", "spent", "cause"),
    [
        (Slo(ttft_s=2.0), (0.5, 0.1, 1.0, 1.2, 0.2, 60.0), "prefill"),
        (Slo(ttft_s=2.0), (1.5, 0.1, 1.0, 0.2, 0.2, 60.0), "queue"),
        (Slo(ttft_s=2.0), (0.1, 1.5, 1.0, 0.2, 0.2, 60.0), "tokenise"),
        (Slo(ttft_s=2.0), (0.1, 0.1, 1.5, 1.1, 0.2, 60.0), "prefill_queue"),
        (Slo(ttft_s=2.0), (0.1, 0.1, 0.5, 1.1, 1.2, 60.0), "transfer"),
        (Slo(tpot_s=0.1), (9.0, 9.0, 9.0, 9.0, 9.0, 1.0), "decode"),
        (Slo(e2el_s=3.5), (0.5, 0.1, 1.0, 1.2, 0.2, 0.9), "prefill"),
        (Slo(e2el_s=3.5), (0.5, 0.1, 1.0, 1.2, 0.2, 1.9), "decode"),
        # TTFT 3 s of 2, TPOT 0.5 s of 0.1: the latter is missed by more.
        (Slo(ttft_s=2.0, tpot_s=0.1), (1.5, 0.1, 1.0, 0.2, 0.2, 1.0), "decode"),
        (Slo(ttft_s=0.2, tpot_s=0.4), (1.5, 0.1, 1.0, 0.2, 0.2, 1.0), "queue"),
    ],
)
def test_the_longest_part_of_what_was_missed_by_most_is_the_cause(
    slo: Slo, spent: tuple[float, ...], cause: str
) -> None:
    first = sum(spent[: PARTS.index("decode")])
    found = Answer("completed", (first, 0.5, first + 1.0))
    broken = misses(found, slo)  # type: ignore[arg-type]
    assert broken
    assert blame(found, slo, broken, spent) == cause  # type: ignore[arg-type]


def leg(**over: Any) -> Any:
    plain = {
        "relayed": True, "sse": True, "t_start": 10.25, "t_first": 11.0, "t_last": 13.0,
        "t_end": 14.0,
    }  # fmt: skip
    return Fake(**{**plain, **over})


def request(**over: Any) -> Any:
    plain = {"method": b"POST", "t0": 10.0, "target": b"/t", "path": b"/v1/chat/completions"}
    return Fake(**{**plain, **over})


def ctx(**over: Any) -> Any:
    plan = Fake(kind="proxy", slos={"up": Slo(ttft_s=1.5, tpot_s=0.6, e2el_s=9.0)})
    plain: dict[str, Any] = {
        "request": request(), "plan": plan, "path": b"/v1/chat/completions", "sent": b"/t",
        "turned": False,
        "group": Fake(name="up"), "policy": {}, "leg": leg(), "kv": None, "two": None,
        "end": "completed", "word": "", "broken": (),
    }  # fmt: skip
    return Fake(**{**plain, **over})


def word(seen: Sequence[float] = (1.0, 0.5, 3.0), **over: Any) -> tuple[str, tuple[str, ...]]:
    made = ctx(**over)
    judge(made, seen)
    return made.word, made.broken


def test_good_is_who_completed_and_kept_every_slo() -> None:
    assert word() == ("good", ())
    assert word(policy={"ttft-slo": 0.9}) == ("prefill", ("ttft",))
    assert word(policy={"tpot-slo": 0.4}) == ("decode", ("tpot",))
    assert word(policy={"ttft-slo": 0.9, "tpot-slo": 0.1}) == ("decode", ("ttft", "tpot"))
    assert word(plan=Fake(kind="proxy", slos={"up": NO_SLO})) == ("good", ())
    for end in ("refused", "limited", "overloaded", "failed"):
        assert word(end=end) == ("error", ())
        assert word(end=end, leg=None, group=None) == ("error", ())


def test_an_answer_without_output_broke_what_wanted_some() -> None:
    silent = leg(t_first=0.0, t_last=0.0)
    assert word((NONE, NONE, NONE), leg=silent) == ("error", ("ttft", "e2el"))


def test_an_answer_that_is_no_stream_has_to_keep_its_end() -> None:
    whole, wishes = leg(sse=False), {"ttft-slo": 0.001}
    assert word((NONE, NONE, 4.0), leg=whole, policy=wishes) == ("good", ())
    assert word((NONE, NONE, 9.5), leg=whole) == ("prefill", ("e2el",))
    none = Fake(kind="proxy", slos={"up": Slo(ttft_s=0.001)})
    assert word((NONE, NONE, 9.5), leg=whole, plan=none) == ("good", ())


def test_some_requests_count_nowhere() -> None:
    assert word(end="cancelled") == ("", ())
    assert word(request=request(method=b"GET")) == ("", ())
    assert word(path=b"/v1/embeddings") == ("", ())
    assert word(plan=Fake(kind="return", slos={})) == ("", ())
    assert word(path=b"/llm/v1/messages") == ("good", ())


def test_an_error_page_is_no_answer() -> None:
    given = Fake(kind="return", slos={})
    assert word(turned=True, plan=given, group=None, leg=leg(relayed=False)) == ("error", ())
    assert word(turned=True, leg=leg(relayed=False)) == ("error", ())  # sent elsewhere: 302
    assert word(turned=True, sent=b"/50x.html", path=b"/50x.html", leg=None) == ("error", ())
    assert word(turned=True) == ("good", ())  # another location's engine answered


def test_a_policy_header_takes_the_place_of_one_slo() -> None:
    own = Slo(2.0, 0.05, 30.0)
    assert slo_of(own, {}, True) is own and slo_of(own, {"session": "a"}, True) is own
    assert slo_of(own, {"ttft-slo": 1.0}, True) == Slo(1.0, 0.05, 30.0)
    assert slo_of(own, {"tpot-slo": 0.1}, True) == Slo(2.0, 0.1, 30.0)
    assert slo_of(own, {"tpot-slo": 0.1}, False) == Slo(e2el_s=30.0)


def test_counts_are_those_of_goodput_over_the_same_requests() -> None:
    """Words of requests taken one by one against gateway/load/goodput.py over all of them."""
    rnd = random.Random(9)
    slo = Slo(ttft_s=1.0, tpot_s=0.2, e2el_s=3.0)
    words, all_measured = [], []
    for _ in range(400):
        end = rnd.choice(["completed"] * 8 + ["failed", "cancelled"])
        chunks = (10 + rnd.uniform(0, 2), 12 + rnd.uniform(0, 2))
        made = ctx(
            leg=leg(t_first=chunks[0], t_last=chunks[1]), end=end,
            plan=Fake(kind="proxy", slos={"up": slo}),
        )  # fmt: skip
        found = measure(Asked(10.0, chunks, end, 9))  # type: ignore[arg-type]
        judge(made, stream_times(10.0, *chunks, 0, 0, 0, 9, 0, end == "completed"))
        words.append(made.word)
        all_measured.append(found)
    total = goodput(all_measured, slo, 10.0)
    assert words.count("good") == total.good > 0
    assert sum(bool(one) for one in words) == total.counted
    assert words.count("error") == total.missed["error"] > 0


@pytest.mark.parametrize("lane", ["on", "off"])
async def test_each_route_has_bounds_of_its_own(gateway: Any, engine: Any, lane: str) -> None:
    """One upstream whose answers take 2 ms, and what is good where."""

    def late(*_: bytes) -> tuple[int, dict[str, str], bytes]:
        waiting.until_clock(time.monotonic() + 0.002)
        return 200, {"content-type": "application/json"}, b"{}"

    made = await engine(late)
    running = await gateway(
        f"upstream u {{ server {made.address}; slo e2el=60s; }} express {lane};"
        "server { listen 127.0.0.1:0; server_name a; slo e2el=1ms;"
        "location /strict/ { proxy_pass http://u/; }"
        "location /ttft/ { proxy_pass http://u/; slo ttft=1ms; }"
        "location /none/ { proxy_pass http://u/; slo off; } }"
        "server { listen 127.0.0.1:0; server_name b; location / { proxy_pass http://u; } }"
    )
    for path, host in (("/strict", "a"), ("/ttft", "a"), ("/none", "a"), ("", "b")):
        url = f"{path}/v1/completions"
        await running.client.post(url, json={"prompt": "x"}, headers={"host": host})
    stats = running.app.pipeline.stats

    def found(server: str, location: str) -> tuple[int, int, float]:
        """Good, missed, and the bound among those of the histogram."""
        series = stats.series[server, location, "u"]
        good, *missed = stats.snapshot(series).words[1:]
        return good, sum(missed), stats.split(series, "e2el") or 60.0 * (server == "b")

    assert found("a", "/strict/") == (0, 1, 0.0)  # 1 ms is a bound of every histogram
    assert found("a", "/ttft/") == (1, 0, 0.0)  # the whole of the server's line is dropped
    assert found("a", "/none/") == (1, 0, 0.0)
    assert found("b", "/") == (1, 0, 60.0)  # the upstream's
