"""Sending again: free where no engine can have seen the request, else never; never without end.

SG#34570, LL#2620, llm-d#1564, PS#420, nginx ticket #488.
"""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import scripts, waiting
from harness.client import Client, prompt, request_bytes
from harness.shapes import error_of
from harness.stage import Conf, Play, Stage
from harness.upstream import Script, answer_ok

BODY = prompt()
THREE = Conf(engines=3)
AGAIN = THREE.but(location="proxy_next_upstream error timeout non_idempotent;")
OFF = THREE.but(location="proxy_next_upstream off;")
LISTED = Conf(
    engines=4,
    location="proxy_next_upstream http_503 http_429 non_idempotent; proxy_next_upstream_tries 2;",
)
GONE_WAYS: dict[str, Script] = {"reset": scripts.resets, "fin": scripts.closes}


def bodies(stage: Stage) -> int:
    """Complete request bodies that engines received."""
    return sum(seen.complete for engine in stage.engines for seen in engine.seen)


def all_say(stage: Stage, script: Script) -> None:
    for engine in stage.engines:
        engine.script = script


@pytest.mark.parametrize("way", sorted(GONE_WAYS))
@pytest.mark.parametrize("warm", [False, True])
def test_request_that_may_have_run_is_not_replayed(
    play: Play, lane: str, way: str, warm: bool
) -> None:
    """SG#34570: reset after the body, before headers: it may run there, a copy doubles it."""
    stage = play(THREE)
    client = stage.client(lane)
    sent = 0
    if warm:  # a pooled connection is no excuse: the request was read on it
        for _ in range(6):
            assert client.ask(BODY).status == 200
        sent = bodies(stage)
    all_say(stage, GONE_WAYS[way])
    error_of(client.ask(BODY), 502, "upstream_lost")
    assert bodies(stage) - sent == 1


@pytest.mark.parametrize("way", sorted(GONE_WAYS))
def test_request_is_replayed_where_the_operator_said_so(play: Play, lane: str, way: str) -> None:
    """`non_idempotent`: the operator takes the risk, once per engine."""
    stage = play(AGAIN)
    all_say(stage, GONE_WAYS[way])
    error_of(stage.ask(lane, BODY), 502)
    assert bodies(stage) == 3
    assert sorted(len(engine.seen) for engine in stage.engines) == [1, 1, 1]


def test_get_is_replayed_by_default(play: Play, lane: str) -> None:
    """GET is idempotent: nginx's rule."""
    stage = play(THREE)
    all_say(stage, scripts.resets)
    error_of(stage.ask(lane, method="GET", target="/v1/things", framed=False), 502)
    assert [len(engine.seen) for engine in stage.engines] == [1, 1, 1]
    stage.engines[1].script = answer_ok
    reply = stage.ask(lane, method="GET", target="/v1/things", framed=False)
    assert reply.status == 200


@pytest.mark.parametrize("conf", [THREE, AGAIN], ids=["default", "non_idempotent"])
def test_refused_connection_is_retried_elsewhere(play: Play, lane: str, conf: Conf) -> None:
    """nginx ticket #488: nothing was sent, so every request may go elsewhere, POST too."""
    stage = play(conf)
    stage.engines[0].kill()
    stage.engines[1].kill()
    try:
        for _ in range(12):
            assert stage.ask(lane, BODY).status == 200
        assert bodies(stage) == 12
    finally:
        stage.engines[0].revive()
        stage.engines[1].revive()


def test_streamed_upload_survives_a_refused_connection(play: Play, lane: str) -> None:
    """The body has not been touched when the connection is refused: it goes elsewhere whole."""
    stage = play(THREE)
    all_say(stage, scripts.reads_all)
    stage.engines[0].kill()
    stage.engines[1].kill()
    try:
        for _ in range(6):
            reply = stage.ask(
                lane,
                b"z" * 200_000,
                target="/v1/audio/transcriptions",
                headers=(("Content-Type", "multipart/form-data"),),
            )
            assert reply.status == 200
        assert [seen.body for seen in stage.engines[2].seen] == [b"z" * 200_000] * 6
    finally:
        stage.engines[0].revive()
        stage.engines[1].revive()


def test_no_retry_at_all_with_off(play: Play, lane: str) -> None:
    stage = play(OFF)
    for engine in stage.engines[:2]:
        engine.kill()
    try:
        statuses = [stage.ask(lane, BODY).status for _ in range(9)]
        assert sorted(set(statuses)) == [200, 502], statuses
    finally:
        for engine in stage.engines[:2]:
            engine.revive()


def test_all_refused_is_one_502(play: Play, lane: str) -> None:
    stage = play(THREE)
    for engine in stage.engines:
        engine.kill()
    try:
        error_of(stage.ask(lane, BODY), 502, "upstream_unreachable")
    finally:
        for engine in stage.engines:
            engine.revive()
    assert stage.ask(lane, BODY).status == 200


def test_attempts_are_bounded_and_do_not_multiply(play: Play, lane: str) -> None:
    """LL#2620: (1+N)² calls. Two tries are two requests upstream, whatever the engines say."""
    stage = play(LISTED)
    all_say(stage, scripts.says(b'{"error":"busy"}', 503, (("X-Engine", "e"),)))
    reply = stage.ask(lane, BODY)
    assert (reply.status, reply.body) == (503, b'{"error":"busy"}')
    assert bodies(stage) == 2


def test_reply_that_is_retried_leaves_no_trace(play: Play, lane: str) -> None:
    """The first engine's 503 (head, body, headers) is discarded whole."""
    stage = play(LISTED)
    busy = scripts.says(
        b'{"error":"busy"}' * 1000, 503, (("X-Engine", "busy"), ("Retry-After", "9"))
    )
    for engine in stage.engines:
        engine.script = answer_ok
    for bad in stage.engines:
        bad.script = busy
        before = len(bad.seen)
        for _ in range(4):
            reply = stage.ask(lane, BODY)
            assert reply.status == 200 and b"busy" not in reply.body
            assert reply.header("x-engine") is None and reply.header("retry-after") is None
        assert len(bad.seen) > before, "the busy engine was never asked: nothing was tested"
        bad.script = answer_ok


def test_unlisted_status_is_not_retried(play: Play, lane: str) -> None:
    stage = play(LISTED)
    all_say(stage, scripts.says(b'{"error":"x"}', 500))
    assert stage.ask(lane, BODY).status == 500
    assert bodies(stage) == 1


def test_nothing_is_retried_once_a_byte_was_relayed(play: Play, lane: str) -> None:
    """Even with non_idempotent: the client has the first engine's head."""
    stage = play(AGAIN)
    all_say(stage, scripts.streams([scripts.event("a")], done=False, then="reset"))
    reply = stage.ask(lane, prompt(True))
    assert reply.status == 200 and reply.body.count(b'"text": "a"') == 1
    assert bodies(stage) == 1


RACE = Conf(keepalive_s=30.0, upstream="health_check off; keepalive_timeout 60s;")


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("order", ["close_first", "request_first"])
def test_pooled_connection_closed_under_a_request_is_replaced(
    play: Play, lane: str, how: str, order: str
) -> None:
    """llm-d#1564: the engine closes an idle connection just as a request is put on it.

    The gateway is stopped (SIGSTOP) while both happen, so that it finds both at once.
    """
    stage = play(RACE)
    client = stage.client(lane)
    assert client.ask(BODY).status == 200
    pooled = stage.engine.seen[0].peer
    stage.gateway.signal_tree(signal.SIGSTOP)
    try:
        if order == "request_first":
            client.send(request_bytes(BODY))
        pooled.reset_from_outside() if how == "reset" else pooled.close()
        if order == "close_first":
            client.send(request_bytes(BODY))
    finally:
        stage.gateway.signal_tree(signal.SIGCONT)
    assert client.reply().status == 200
    assert bodies(stage) == 2


SHORT_LIVED = Conf(keepalive_s=0.5, upstream="health_check off; keepalive_timeout 400ms;")


def test_requests_at_the_engines_keep_alive_edge_never_fail(play: Play, lane: str) -> None:
    """llm-d#1564: 5 s there and 4 s for the pool, here a tenth; spacing around both."""
    stage = play(SHORT_LIVED)
    rounds, width = 10, 24
    barrier = threading.Barrier(width)

    def visitor(number: int) -> list[int]:
        statuses = []
        with Client(("127.0.0.1", stage.ports[lane])) as client:
            for turn in range(rounds):
                barrier.wait(20)
                share = ((number * 7 + turn * 3) % width) / width
                waiting.until_clock(time.monotonic() + 0.38 + 0.14 * share)
                statuses.append(client.ask(BODY).status)
        return statuses

    with ThreadPoolExecutor(width) as pool:
        statuses = [status for some in pool.map(visitor, range(width)) for status in some]
    assert statuses == [200] * (rounds * width)
    assert bodies(stage) == rounds * width, "a request ran twice"


def test_default_pool_idle_time_is_below_the_engines(play: Play, lane: str) -> None:
    """The gateway lets go first: with defaults it closes an idle connection, not the engine."""
    stage = play(Conf(keepalive_s=30.0))
    assert stage.ask(lane, BODY).status == 200
    peer = stage.engine.seen[-1].peer
    started = time.monotonic()
    peer.wait_gone(6)
    assert 3.5 < time.monotonic() - started < 5.0


def test_connections_are_reused(stage: Stage, lane: str) -> None:
    """One client, one after another: one connection to the engine."""
    client = stage.client(lane)
    for _ in range(20):
        assert client.ask(BODY).status == 200
    assert len({id(seen.peer) for seen in stage.engine.seen[1:]}) == 1


def test_dead_engine_costs_one_error_per_request_in_flight(own: Play, lane: str) -> None:
    """PS#420: kill -9 one of three under load: at most its in-flight requests fail, none after."""
    stage = own(Conf(engines=3, server_args="max_fails=1 fail_timeout=30s"))
    release = threading.Event()

    def held(peer: scripts.Peer, seen: scripts.Seen) -> None:
        release.wait(10)
        answer_ok(peer, seen)

    all_say(stage, held)
    with ThreadPoolExecutor(12) as pool:
        running = [pool.submit(stage.ask, lane, BODY) for _ in range(12)]
        for engine in stage.engines:
            engine.wait_seen(4)
        stage.engines[0].kill()
        release.set()
        statuses = sorted(future.result().status for future in running)
    assert statuses == [200] * 8 + [502] * 4, statuses
    all_say(stage, answer_ok)
    assert [stage.ask(lane, BODY).status for _ in range(50)] == [200] * 50
