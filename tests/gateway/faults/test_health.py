"""Active checks: they see what is dead, carry the key, and touch no counter.

R#159, R#197, PS#420.
"""

from __future__ import annotations

from harness import scripts, waiting
from harness.client import prompt, request_bytes
from harness.stage import Conf, Play, Stage, in_flight_by_engine

BODY = prompt()
CHECKED = Conf(
    engines=2,
    upstream="health_check interval=100ms timeout=300ms fails=2 passes=1; api_key probe-key;",
)


def only_engine_used(stage: Stage, lane: str, index: int) -> bool:
    before = [len(engine.seen) for engine in stage.engines]
    assert [stage.ask(lane, BODY).status for _ in range(6)] == [200] * 6
    used = [len(engine.seen) - was for engine, was in zip(stage.engines, before, strict=True)]
    return used[index] == 6


def test_checks_carry_the_gateways_own_key(own: Play, lane: str) -> None:
    """R#159: the key was not sent with health checks, so keyed engines never became healthy."""
    stage = own(CHECKED)
    for engine in stage.engines:
        engine.control_key = "probe-key"
        engine.control = []
        engine.wait(lambda engine=engine: len(engine.control) > 5, "health checks")
    assert [stage.ask(lane, BODY).status for _ in range(4)] == [200] * 4
    assert all(engine.seen for engine in stage.engines)
    [first, *_] = stage.engines[0].seen
    assert first.header("authorization") is None, (
        "the gateway's own key went with a client's request"
    )


def test_engine_that_fails_its_checks_is_left_out_and_comes_back(own: Play, lane: str) -> None:
    stage = own(CHECKED)
    stage.engines[0].control_status = 503
    waiting.until(lambda: only_engine_used(stage, lane, 1), "the sick engine to be left out", 5)
    stage.engines[0].control_status = 200
    waiting.until(lambda: not only_engine_used(stage, lane, 1), "it to come back", 5)


def test_dead_engine_is_found_without_traffic(own: Play, lane: str) -> None:
    stage = own(CHECKED)
    stage.engines[0].kill()
    waiting.until(lambda: "fails its health check" in stage.gateway.log(), "the log to say so", 5)
    assert [stage.ask(lane, BODY).status for _ in range(10)] == [200] * 10


def test_checks_do_not_touch_the_in_flight_counts(own: Play, lane: str) -> None:
    """R#197: every check reset the load counters."""
    stage = own(CHECKED)
    for engine in stage.engines:
        engine.script = scripts.hangs
    for _ in range(6):
        stage.client(lane).send(request_bytes(BODY))
    for engine in stage.engines:
        engine.wait_seen(3)
    checks = len(stage.engines[0].control)
    samples = []

    def enough() -> bool:
        samples.append(sorted(in_flight_by_engine(stage.gateway.status()).values()))
        return len(stage.engines[0].control) > checks + 5

    waiting.until(enough, "five more checks", 5)
    assert samples and all(sample == [3, 3] for sample in samples), samples
