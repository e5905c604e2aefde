"""Where an engine's events come from: what it says, and what can be made of it from here."""

from __future__ import annotations

import json

import pytest

from gateway.conf.model import EngineLine
from gateway.kv.sources import Found, Source, candidates, read, written


def line(host: str = "10.0.0.5", **how: object) -> EngineLine:
    return EngineLine(f"{host}:8000", host, 8000, "", **how)  # type: ignore[arg-type]


UNIX = EngineLine("unix:/run/v.sock", "", 0, "/run/v.sock")


@pytest.mark.parametrize(
    ("told", "engine", "tried"),
    [
        ("tcp://*:5557", line(), ["tcp://10.0.0.5:5557"]),
        ("tcp://0.0.0.0:5557", line("engine.local"), ["tcp://engine.local:5557"]),
        ("tcp://[::]:5557", line("fd00::5"), ["tcp://[fd00::5]:5557"]),
        ("tcp://*:5557", UNIX, ["tcp://127.0.0.1:5557"]),
        # A node's own idea of its address is tried first, then the one that its requests go to.
        ("tcp://10.0.0.5:41234", line(), ["tcp://10.0.0.5:41234"]),
        ("tcp://172.17.0.2:41234", line(), ["tcp://172.17.0.2:41234", "tcp://10.0.0.5:41234"]),
        ("tcp://172.17.0.2:4", line("127.0.0.1"), ["tcp://172.17.0.2:4", "tcp://127.0.0.1:4"]),
        # Another machine's loopback is not ours.
        ("tcp://127.0.0.1:5557", line(), ["tcp://10.0.0.5:5557"]),
        ("tcp://127.0.0.1:5557", line("localhost"),
         ["tcp://127.0.0.1:5557", "tcp://localhost:5557"]),
        ("ipc:///run/events", UNIX, ["ipc:///run/events"]),
        ("ipc:///run/events", line("127.0.0.1"), ["ipc:///run/events"]),
    ],
)  # fmt: skip
def test_what_an_engine_tells_becomes_what_we_can_reach(
    told: str, engine: EngineLine, tried: list[str]
) -> None:
    assert candidates(told, engine) == (tried, "")


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ("ipc:///run/events", "a file of another machine"),
        ("inproc://cache", "no other process"),
        ("tcp://host", "no port"),
        ("tcp://host:0", "no port"),
        ("nonsense", "no other process"),
    ],
)
def test_what_cannot_be_reached_is_said(told: str, word: str) -> None:
    tried, why = candidates(told, line())
    assert tried == [] and word in why


def body(*ranks: dict[str, object]) -> bytes:
    return json.dumps({str(n): rank for n, rank in enumerate(ranks)}).encode()


ZMQ = {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": None, "topic": "t"}


@pytest.mark.parametrize(
    ("status", "answer", "final", "word"),
    [
        (404, b"{}", True, "404"),
        (401, b"{}", False, "api_key"),
        (500, b"", False, "500"),
        (200, b"{}", True, "--kv-events-config"),
        (200, body({**ZMQ, "publisher": "null"}), True, "publishes no KV events"),
        (200, b"<html>", True, "not what vLLM says"),
        (200, b'{"a": 1}', True, "not what vLLM says"),
        (200, b"[]", True, "not what vLLM says"),
        (200, body({**ZMQ, "endpoint": "tcp://" + "x" * 600}), True, "too long"),
    ],
)
def test_replies_that_name_no_publisher(
    status: int, answer: bytes, final: bool, word: str
) -> None:
    published, found = read(status, answer)
    assert published == () and found.final is final and word in found.why, found


def test_a_reply_that_names_publishers() -> None:
    published, _ = read(200, body(ZMQ, {**ZMQ, "endpoint": "tcp://*:5558"}))
    assert [one.endpoint for one in published] == ["tcp://*:5557", "tcp://*:5558"]
    assert (published[0].replay, published[0].topic) == ("", "t")


TWO = Found((Source("tcp://a:1"), Source("tcp://a:2")))


def test_ranks_are_matched_by_their_order() -> None:
    """With hybrid load balancing a node names its ranks 4 to 7 and takes 0 to 3 in requests."""
    assert TWO.of(line(rank=1, ranks=2)) == (Source("tcp://a:2"), "")
    source, why = TWO.of(line())
    assert source is None and "2 data-parallel ranks" in why
    published, _ = read(200, json.dumps({"7": ZMQ, "4": {**ZMQ, "topic": "first"}}).encode())
    assert [one.topic for one in published] == ["first", "t"]


def test_found_survives_the_way_between_processes() -> None:
    for found in (TWO, Found(why="no", final=False)):
        assert Found.of_json(json.loads(json.dumps(found.as_json()))) == found
    for nonsense in ({}, {"sources": [["a"]], "why": "", "final": True}, {"sources": 1}):
        assert Found.of_json(nonsense) is None


def test_what_the_server_line_says() -> None:
    assert written(line()) is None
    assert written(line(events="tcp://h:1", replay="tcp://h:2")) == Source("tcp://h:1", "tcp://h:2")
