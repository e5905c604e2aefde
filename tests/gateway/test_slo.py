"""What is said of one request: how it ended, what was measured, which part broke its SLO."""

from __future__ import annotations

import random
from math import isclose
from types import SimpleNamespace as Fake
from typing import Any

import pytest

from gateway.context import CLIENT_LEFT
from gateway.load.goodput import Slo, goodput, misses
from gateway.load.measure import Asked, measure
from gateway.slo import CAUSES, ENDS, WORDS, blame, end_of, judge, measured, slo_of
from gateway.spent import PARTS, Moments, parts
from gateway.stats import OUTCOMES, times_of
from native._core import Stats


def leg(**over: Any) -> Any:
    """A stream of five tokens in three events, a role before and a usage after them."""
    plain: dict[str, Any] = {
        "relayed": True, "sse": True, "status": 200, "chunks": 3, "completion_tokens": 5,
        "t_start": 10.25, "t_choices": (10.5, 13.5), "t_first": 11.0, "t_answer": 12.0,
        "t_last": 13.0, "t_end": 14.0,
    }  # fmt: skip
    return Fake(**{**plain, **over})


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
    found = measured(leg(), 10.0, "completed")
    assert found is not None
    assert (found.ttft_s, found.ttft_choice_s, found.tpot_s, found.e2el_s) == (1.0, 0.5, 0.5, 3.0)
    assert (found.tokens, found.counted) == (5, False)
    times = dict(zip(Stats.TIMES, (*times_of(leg(), 10.0, found)[:3], 9.0), strict=False))
    assert times == {"ttft": 1.0, "tpot": 0.5, "e2el": 3.0, "duration": 9.0}
    # To the first answer; as vllm bench has them: TTFT, TPOT and E2EL.
    assert times_of(leg(), 10.0, found)[3:] == (2.0, 0.5, 0.75, 3.5)


def test_one_token_has_no_tpot_and_one_chunk_of_several_has_none_to_wait_for() -> None:
    one = measured(leg(completion_tokens=1, chunks=1, t_last=11.0), 10.0, "completed")
    several = measured(leg(completion_tokens=4, chunks=1, t_last=11.0), 10.0, "completed")
    assert one is not None and several is not None
    assert (one.tpot_s, several.tpot_s) == (None, 0.0)
    assert misses(one, Slo(tpot_s=0.001)) == ()


def test_events_stand_for_tokens_where_the_engine_counted_none() -> None:
    found = measured(leg(completion_tokens=-1), 10.0, "completed")
    assert found is not None and (found.tokens, found.counted, found.tpot_s) == (3, True, 1.0)


def test_what_did_not_end_has_no_end_to_end_latency_and_what_is_no_stream_no_first_token() -> None:
    cut = measured(leg(), 10.0, "failed")
    assert cut is not None
    assert times_of(leg(), 10.0, cut) == (1.0, 0.5, -1.0, 2.0, 0.5, 0.75, -1.0)
    whole = leg(sse=False)
    found = measured(whole, 10.0, "completed")
    assert found is not None and (found.ttft_s, found.e2el_s) == (None, 4.0)
    assert times_of(whole, 10.0, found) == (-1.0, -1.0, 4.0, -1.0, -1.0, -1.0, -1.0)
    for none in (None, leg(relayed=False), leg(status=400)):
        assert measured(none, 10.0, "failed") is None
    silent = leg(t_first=0.0, t_last=0.0, t_answer=0.0, chunks=0)
    found = measured(silent, 10.0, "completed")
    assert found is not None and set(times_of(silent, 10.0, found)) == {-1.0}


def test_definitions_are_those_of_the_load_generator() -> None:
    rnd = random.Random(5)
    for _ in range(300):
        due = rnd.uniform(0, 5)
        chunks = sorted(due + rnd.expovariate(1) for _ in range(rnd.randint(0, 6)))
        choice = min([*chunks, due + rnd.random()])
        tokens = rnd.choice([-1, 0, 1, 2, 30])
        asked = measure(Asked(due, chunks, "completed", tokens, choice))
        first, last = (chunks[0], chunks[-1]) if chunks else (0.0, 0.0)
        made = leg(
            t_first=first, t_last=last, t_choices=(choice, last), chunks=len(chunks),
            completion_tokens=tokens,
        )  # fmt: skip
        found = measured(made, due, "completed")
        assert found is not None
        for name in ("ttft_s", "ttft_choice_s", "tpot_s", "e2el_s"):
            one, other = getattr(found, name), getattr(asked, name)
            assert one == other or isclose(one, other, abs_tol=1e-9), name
        assert (found.tokens, found.counted) == (asked.tokens, asked.counted)


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
    asked = Asked(0.0, (first, first + 0.5, first + 1.0), tokens=3)
    found = measure(asked)
    broken = misses(found, slo)
    assert broken
    assert blame(found, slo, broken, spent) == cause  # type: ignore[arg-type]


def ctx(**over: Any) -> Any:
    plan = Fake(kind="proxy", slos={"up": Slo(ttft_s=1.5, tpot_s=0.6, e2el_s=9.0)})
    plain: dict[str, Any] = {
        "request": Fake(method=b"POST", t0=10.0), "plan": plan, "path": b"/v1/chat/completions",
        "group": Fake(name="up"), "policy": {}, "leg": leg(), "kv": None, "two": None,
        "end": "completed", "word": "", "broken": (),
    }  # fmt: skip
    return Fake(**{**plain, **over})


def word(**over: Any) -> tuple[str, tuple[str, ...]]:
    made = ctx(**over)
    judge(made, measured(made.leg, 10.0, made.end))
    return made.word, made.broken


def test_good_is_who_completed_and_kept_every_slo() -> None:
    assert word() == ("good", ())
    assert word(policy={"ttft-slo": 0.9}) == ("prefill", ("ttft",))
    assert word(policy={"tpot-slo": 0.4}) == ("decode", ("tpot",))
    assert word(policy={"ttft-slo": 0.9, "tpot-slo": 0.1}) == ("decode", ("ttft", "tpot"))
    assert word(plan=Fake(kind="proxy", slos={"up": Slo()})) == ("good", ())
    for end in ("refused", "limited", "overloaded", "failed"):
        assert word(end=end) == ("error", ())
        assert word(end=end, leg=None, group=None) == ("error", ())


def test_an_answer_without_output_broke_what_wanted_some() -> None:
    silent = leg(t_first=0.0, t_last=0.0, t_answer=0.0, chunks=0)
    assert word(leg=silent) == ("error", ("ttft", "e2el"))


def test_an_answer_that_is_no_stream_has_to_keep_its_end() -> None:
    late = leg(sse=False, t_end=19.5)
    assert word(leg=leg(sse=False)) == ("good", ())
    assert word(leg=late) == ("prefill", ("e2el",))


def test_some_requests_count_nowhere() -> None:
    assert word(end="cancelled") == ("", ())
    assert word(request=Fake(method=b"GET", t0=10.0)) == ("", ())
    assert word(path=b"/v1/embeddings") == ("", ())
    assert word(plan=Fake(kind="return", slos={})) == ("", ())
    assert word(path=b"/llm/v1/messages") == ("good", ())


def test_a_policy_header_takes_the_place_of_one_slo() -> None:
    own = Slo(2.0, 0.05, 30.0)
    assert slo_of(own, {}) is own and slo_of(own, {"session": "a"}) is own
    assert slo_of(own, {"ttft-slo": 1.0}) == Slo(1.0, 0.05, 30.0)
    assert slo_of(own, {"tpot-slo": 0.1}) == Slo(2.0, 0.1, 30.0)


def test_counts_are_those_of_goodput_over_the_same_requests() -> None:
    """Words of requests taken one by one against gateway/load/goodput.py over all of them."""
    rnd = random.Random(9)
    slo = Slo(ttft_s=1.0, tpot_s=0.2, e2el_s=3.0)
    words, all_measured = [], []
    for _ in range(400):
        end = rnd.choice(["completed"] * 8 + ["failed", "cancelled"])
        first = 10 + rnd.uniform(0, 2)
        last = first + rnd.uniform(0, 2)
        made = ctx(
            leg=leg(t_first=first, t_last=last), end=end, plan=Fake(kind="proxy", slos={"up": slo})
        )
        found = measured(made.leg, 10.0, end)
        assert found is not None
        judge(made, found)
        words.append(made.word)
        all_measured.append(found)
    total = goodput(all_measured, slo, 10.0)
    assert words.count("good") == total.good
    assert sum(bool(one) for one in words) == total.counted
    assert words.count("error") == total.missed["error"]
