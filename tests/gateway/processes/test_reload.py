"""HUP: another configuration in place, what runs keeps running, a bad file changes nothing."""

from __future__ import annotations

import signal

from harness import scripts, waiting
from harness.client import prompt, request_bytes
from harness.upstream import Engine


def test_streams_and_counts_survive(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=1)
    (engine,) = one.engines
    reply = engine.script = scripts.Stepwise(scripts.event("one"), scripts.event("two"))
    client = one.client()
    client.send(request_bytes(prompt(True)))
    reply.step()
    client.head()
    client.chunks_until(b"one")
    pids = one.processes()
    one.server_args[engine.address] = "weight=3"
    assert one.reload() == 2
    assert one.in_flight() == 1 and one.engine_rows()[engine.address]["weight"] == 3
    reply.step(2)
    client.chunks_until(b"two")
    assert client.chunk() == b""
    waiting.until(lambda: one.in_flight() == 0, "nothing in flight")
    engine.script = scripts.says()
    client.ask(prompt())  # the same connection serves on
    assert one.processes() == pids
    assert "weight 1 -> 3" in one.gateway.log()


def test_engines_come_and_go(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=2)
    first, second = one.engines
    held = scripts.Stepwise(scripts.event("one"), scripts.event("two"))
    first.script = second.script = held
    client = one.client()
    client.send(request_bytes(prompt(True)))
    held.step()
    client.head()
    client.chunks_until(b"one")
    busy, idle = (first, second) if first.seen else (second, first)
    third = Engine()
    one.engines = [idle, third]
    third.script = idle.script = scripts.says()
    one.reload()
    asked = len(busy.seen)
    for _ in range(10):
        assert one.ask(prompt()).status == 200
    assert len(busy.seen) == asked and third.seen and idle.seen
    held.step(2)  # the removed engine's stream is finished
    client.chunks_until(b"two")
    assert client.chunk() == b""
    one.engines.append(busy)
    busy.script = scripts.says()
    one.reload()
    assert one.in_flight() == 0
    for _ in range(12):
        one.ask(prompt())
    assert len(busy.seen) > asked


def test_listeners_come_and_go(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=1)
    keeper = one.client()
    assert keeper.ask(prompt()).status == 200
    one.more = (
        f"server {{ listen 127.0.0.1:{one.port2}; location / {{ proxy_pass http://main; }} }}"
    )
    one.reload()
    for _ in range(10):
        assert one.ask(prompt(), one.port2).status == 200
    other = one.client(one.port2)
    assert other.ask(prompt()).status == 200
    one.more = ""
    one.reload()
    assert other.ends_within(2)
    waiting.until(lambda: refused(one, one.port2), "the removed listener to be closed", 3)
    assert keeper.ask(prompt()).status == 200


def test_a_bad_include_changes_nothing_and_says_where(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=1)
    bad = "# fine\nserver { listen 1; lokation / { return 404; } }\n"
    (one.folder / "more.inc").write_text(bad)
    one.more = "include more.inc;"
    one.write()
    one.gateway.signal(signal.SIGHUP)
    waiting.until(lambda: one.status()["reload_error"], "the refusal", 5)
    status = one.status()
    assert status["generation"] == 1 and status["reload_failed"] > status["loaded"] - 1
    place = 'more.inc:2:20: error: unknown directive "lokation"'
    for text in (status["reload_error"], one.gateway.log()):
        assert place in text and f"included from {one.folder}/kvgate.conf:2" in text
    assert one.ask(prompt()).status == 200
    one.more = ""
    assert one.reload() == 2
    assert one.status()["reload_error"] == ""


def test_an_address_that_is_taken_changes_nothing(tree) -> None:  # type: ignore[no-untyped-def]
    one, other = tree(engines=1), tree(engines=1)
    one.more = f"server {{ listen 127.0.0.1:{other.port}; return 404; }}"
    one.write()
    one.gateway.signal(signal.SIGHUP)
    waiting.until(lambda: "cannot listen" in one.status()["reload_error"], "the refusal", 5)
    assert one.generation == 1 and one.ask(prompt()).status == 200


def test_more_and_fewer_workers(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=1, workers=1)
    first = one.processes()
    one.workers = 3
    one.reload()
    assert set(first) < set(one.wait_workers(3))
    one.workers = 1
    one.reload()
    assert one.wait_workers(1) == first
    assert one.ask(prompt()).status == 200


def test_a_second_reload_waits_for_the_first(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=1)
    for _ in range(20):
        one.gateway.signal(signal.SIGHUP)
    one.server_args[one.engines[0].address] = "weight=7"
    one.write()
    one.gateway.signal(signal.SIGHUP)
    waiting.until(
        lambda: one.engine_rows()[one.engines[0].address]["weight"] == 7, "the last one", 10
    )


def refused(one, port: int) -> bool:  # type: ignore[no-untyped-def]
    try:
        one.client(port).close()
    except ConnectionRefusedError:
        return True
    return False


def test_locations_come_and_go_for_ever(tree) -> None:  # type: ignore[no-untyped-def]
    """There is room for 1024 rows of statistics: those of locations that are gone are given to
    later ones, which a stream that still runs at the former does not count for.
    """
    one = tree(engines=1)
    (engine,) = one.engines

    def locations(generation: int) -> str:
        rows = (f"location = /v1/g{generation}/{at} " for at in range(200))
        return "".join(row + "{ proxy_pass http://main/v1/completions; }" for row in rows)

    def rows() -> list[str]:
        lines = one.gateway.metrics().splitlines()
        name = "kvgate_inter_token_latency_seconds_count{"
        return [line for line in lines if line.startswith(name) and "/g" in line]

    one.locations = locations(0)
    one.reload()
    reply = engine.script = scripts.Stepwise(*(scripts.event(f"e{at}") for at in range(9)))
    client = one.client()
    client.send(request_bytes(prompt(True), target="/v1/g0/0"))
    reply.step()
    client.head()
    client.chunks_until(b"e0")
    for generation in range(1, 4):
        one.locations = locations(generation)
        one.reload()
        reply.step()
        client.chunks_until(b"e%d" % generation)
        waiting.until(lambda g=generation: f"/g{g}/" in "".join(rows()), "the new rows")
    assert len(rows()) == 200 and all(" 0.0" in row and "/g3/" in row for row in rows())
    reply.step(9)
    client.chunks_until(b"e8")
    assert client.chunk() == b""
    engine.script = scripts.says()
    waiting.until(lambda: one.in_flight() == 0, "nothing in flight")
    assert one.ask(prompt()).status == 200
    assert all(" 0.0" in row for row in rows())
