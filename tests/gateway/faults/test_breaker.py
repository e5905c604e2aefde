"""Passive marks: engines are benched for their own faults, never for a client's.

R#60, SG#25811, SMG#2565, R#148, SG#3031.
"""

from __future__ import annotations

import pytest
from harness import scripts, waiting
from harness.client import Client, prompt
from harness.stage import Conf, Play, Stage
from harness.upstream import Script, answer_ok

BODY = prompt()
MARKS = Conf(engines=3, server_args="max_fails=3 fail_timeout=30s")
BRIEF = Conf(engines=2, server_args="max_fails=1 fail_timeout=400ms")


def spread(stage: Stage, lane: str, count: int = 30) -> list[int]:
    """How many of `count` good requests each engine gets."""
    before = [len(engine.seen) for engine in stage.engines]
    for engine in stage.engines:
        engine.script = answer_ok
    with Client(("127.0.0.1", stage.ports[lane])) as client:
        assert [client.ask(BODY).status for _ in range(count)] == [200] * count
    return [len(engine.seen) - was for engine, was in zip(stage.engines, before, strict=True)]


def flood(stage: Stage, lane: str, script: Script, count: int) -> list[int]:
    for engine in stage.engines:
        engine.script = script
    with Client(("127.0.0.1", stage.ports[lane])) as client:
        return [client.ask(BODY).status for _ in range(count)]


def test_a_thousand_400s_bench_nobody(play: Play, lane: str) -> None:
    """R#60: one client's bad requests ejected the whole fleet."""
    stage = play(MARKS)
    assert flood(stage, lane, scripts.says(b'{"error":"bad"}', 400), 1000) == [400] * 1000
    assert spread(stage, lane) == [10, 10, 10]


@pytest.mark.parametrize("status", [401, 403, 404, 408, 409, 413, 422, 429])
def test_other_client_errors_bench_nobody(play: Play, lane: str, status: int) -> None:
    """SG#3031: a worker was removed after 401s from one user's bad key."""
    stage = play(MARKS)
    assert flood(stage, lane, scripts.says(b"{}", status), 30) == [status] * 30
    assert spread(stage, lane) == [10, 10, 10]


def test_400_between_502s_does_not_keep_an_engine_in(own: Play, lane: str) -> None:
    """SMG#2565: counted as success, the 400s reset the failure run and the breaker never opened."""
    stage = own(MARKS)
    bad = stage.engines[0]
    bad.script = scripts.in_turn(
        *[scripts.says(b"{}", status) for status in (400, 502) * 20],
    )
    with Client(("127.0.0.1", stage.ports[lane])) as client:
        statuses = [client.ask(BODY).status for _ in range(60)]
    assert statuses.count(502) == 3, statuses
    assert len(bad.seen) == 6, len(bad.seen)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_gateway_errors_of_an_engine_bench_it(own: Play, lane: str, status: int) -> None:
    stage = own(MARKS)
    stage.engines[1].script = scripts.says(b"{}", status)
    with Client(("127.0.0.1", stage.ports[lane])) as client:
        statuses = [client.ask(BODY).status for _ in range(60)]
    assert statuses.count(status) == 3, statuses


def test_503_with_retry_after_is_load_not_failure(play: Play, lane: str) -> None:
    """An engine that asks to come back is alive."""
    stage = play(MARKS)
    shed = scripts.says(b"{}", 503, (("Retry-After", "1"),))
    assert flood(stage, lane, shed, 60) == [503] * 60
    assert spread(stage, lane) == [10, 10, 10]


def test_poison_prompt_that_gives_500_everywhere_benches_nobody(play: Play, lane: str) -> None:
    """R#148: a too-long prompt gives 500 from every engine; others must not suffer."""
    stage = play(MARKS)
    assert flood(stage, lane, scripts.says(b"{}", 500), 20) == [500] * 20
    assert spread(stage, lane) == [10, 10, 10]


@pytest.mark.parametrize("how", ["refused", "reset", "bad_reply"])
def test_engine_at_fault_is_benched(own: Play, lane: str, how: str) -> None:
    stage = own(MARKS)
    bad = stage.engines[0]
    if how == "refused":
        bad.kill()
    else:
        bad.script = (
            scripts.resets if how == "reset" else scripts.sends(b"junk\r\n\r\n", then="fin")
        )
    with Client(("127.0.0.1", stage.ports[lane])) as client:
        statuses = [client.ask(BODY).status for _ in range(60)]
    assert statuses.count(502) == (0 if how == "refused" else 3), statuses
    assert stage.gateway.alive


def test_benched_engine_comes_back_after_its_time(own: Play, lane: str) -> None:
    stage = own(BRIEF)
    stage.engines[0].script = scripts.resets
    with Client(("127.0.0.1", stage.ports[lane])) as client:
        assert [client.ask(BODY).status for _ in range(10)].count(502) == 1
        stage.engines[0].script = answer_ok
        before = len(stage.engines[0].seen)

        def back() -> bool:
            assert client.ask(BODY).status == 200
            return len(stage.engines[0].seen) > before

        waiting.until(back, "the benched engine to be tried again", 3)
        spread_now = spread(stage, lane, 10)
    assert spread_now == [5, 5]


def test_all_benched_are_tried_again_at_once(own: Play, lane: str) -> None:
    """The last resort: with everybody benched all get another chance (nginx's rule)."""
    stage = own(MARKS.but(server_args="max_fails=1 fail_timeout=30s"))
    flood(stage, lane, scripts.resets, 10)
    assert sum(spread(stage, lane)) == 30


def test_lone_engine_is_never_benched(own: Play, lane: str) -> None:
    stage = own(Conf(server_args="max_fails=1 fail_timeout=30s"))
    flood(stage, lane, scripts.resets, 5)
    assert spread(stage, lane, 5) == [5]
