"""Changes of upstreams at run time, over the admin listener, in every worker at once."""

from __future__ import annotations

import pytest
from harness import scripts, waiting
from harness.client import prompt, request_bytes
from harness.upstream import Engine

SERVERS = "/kvgate/upstreams/main/servers"


def change(one, action: str, server: str, **params: object):  # type: ignore[no-untyped-def]
    document = {"action": action, "server": server, "params": params}
    return one.post(SERVERS, document)


def test_add_and_remove(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=1)
    other = Engine()
    one.engines.append(other)
    status, document = change(one, "add", other.address, weight=3, max_fails=0)
    assert status == 200 and document["generation"] == 2
    rows = {e["address"]: e for e in document["upstreams"]["main"]["engines"]}
    assert rows[other.address]["weight"] == 3
    for _ in range(20):
        assert one.ask(prompt()).status == 200
    assert 13 <= len(other.seen) <= 17  # by weight, each worker in turns of its own
    status, _ = change(one, "remove", one.engines[0].address)
    assert status == 200
    seen = len(one.engines[0].seen)
    for _ in range(10):
        assert one.ask(prompt()).status == 200
    assert len(one.engines[0].seen) == seen
    status, document = change(one, "remove", other.address)
    assert status == 400 and "last server" in document["error"]["message"]


def test_drain_finishes_what_runs_and_ready_takes_it_back(tree) -> None:  # type: ignore[no-untyped-def]
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
    first.script = second.script = scripts.says()
    assert change(one, "drain", busy.address)[0] == 200
    assert one.engine_rows()[busy.address]["state"] == "draining"
    assert one.engine_rows()[busy.address]["in_flight"] == 1
    for _ in range(10):
        assert one.ask(prompt()).status == 200
    assert len(busy.seen) == 1 and len(idle.seen) == 10
    held.step(2)
    client.chunks_until(b"two")
    assert client.chunk() == b""
    waiting.until(lambda: one.in_flight() == 0, "nothing in flight")
    assert change(one, "ready", busy.address)[0] == 200
    for _ in range(10):
        assert one.ask(prompt()).status == 200
    assert len(busy.seen) > 1
    assert change(one, "down", busy.address)[0] == 200
    assert one.engine_rows()[busy.address]["state"] == "down"


def test_a_reload_goes_back_to_the_file(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=1)
    assert change(one, "add", "127.0.0.1:9")[0] == 200
    assert "127.0.0.1:9" in one.engine_rows()
    assert one.reload() == 3
    assert "127.0.0.1:9" not in one.engine_rows()


@pytest.mark.parametrize(
    ("document", "status", "word"),
    [
        ({"action": "explode", "server": "127.0.0.1:9"}, 400, "`action`"),
        ({"action": "add", "server": "a b"}, 400, "`server`"),
        ({"action": "add", "server": "127.0.0.1:9; } http {"}, 400, "`server`"),
        ({"action": "add", "server": "127.0.0.1:9", "params": {"wieght": 2}}, 400, "weight"),
        ({"action": "add", "server": "127.0.0.1:9", "params": {"weight": "2; }"}}, 400, "weight"),
        ({"action": "down", "server": "127.0.0.1:9"}, 404, "no server"),
        ([], 400, "object"),
    ],
)
def test_what_makes_no_sense_is_refused(tree, document, status, word) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=1, workers=1)
    got, answer = one.post(SERVERS, document)
    assert (got, word in answer["error"]["message"]) == (status, True), answer
    assert one.generation == 1


def test_an_unknown_upstream_is_404(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=1, workers=1)
    got, _ = one.post("/kvgate/upstreams/nobody/servers", {"action": "down", "server": "a:1"})
    assert got == 404
