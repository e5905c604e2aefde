"""Limits: each has a defined answer, in OpenAI shape, before anything is forwarded."""

from __future__ import annotations

import contextlib
import time

import pytest
from harness.client import chunked, prompt, request_bytes
from harness.shapes import error_of
from harness.stage import Conf, Play, Stage

BODY = prompt()
SMALL = Conf(
    server="client_header_timeout 300ms; client_body_timeout 300ms; keepalive_timeout 300ms;"
    " large_client_header_buffers 4 2k; keepalive_requests 3;",
    location="client_max_body_size 100k;",
)
KIB = 1024


@pytest.fixture
def small(play: Play) -> Stage:
    return play(SMALL)


def refused(small: Stage, lane: str, data: bytes, status: int, code: str = "") -> None:
    client = small.client(lane)
    with contextlib.suppress(ConnectionError):  # it may answer and leave before all is written
        client.send(data)
    error_of(client.reply(), status, code)
    assert client.ends_within(3)
    assert not small.engine.seen


def test_header_bytes_beyond_the_limit_are_431(small: Stage, lane: str) -> None:
    """4 buffers of 2k hold 8k of head."""
    lines = tuple((f"X-H{index}", "v" * 1000) for index in range(9))
    refused(small, lane, request_bytes(BODY, headers=lines), 431)


def test_header_bytes_are_limited_before_the_head_ends(small: Stage, lane: str) -> None:
    """The limit is enforced while reading: no endless head is kept in memory."""
    head = request_bytes(BODY, headers=tuple((f"X-H{n}", "v" * 1000) for n in range(60)))
    refused(small, lane, head.split(b"\r\n\r\n")[0], 431)


def test_header_count_beyond_the_limit_is_431(stage: Stage, lane: str) -> None:
    """200 header lines are allowed, 300 are not."""
    lines = tuple((f"X-{index}", "v") for index in range(300))
    refused(stage, lane, request_bytes(BODY, headers=lines), 431)


def test_header_count_within_the_limit_passes(stage: Stage, lane: str) -> None:
    lines = tuple((f"X-{index}", "v") for index in range(150))
    assert stage.ask(lane, BODY, headers=lines).status == 200
    assert stage.engine.seen[0].header("x-149") == "v"


def test_long_target_is_414(small: Stage, lane: str) -> None:
    refused(small, lane, request_bytes(BODY, target="/v1/" + "x" * 20_000), 414)


def test_endless_request_line_is_414(small: Stage, lane: str) -> None:
    refused(small, lane, b"GET /" + b"x" * 100_000, 414)


def test_declared_body_beyond_the_limit_is_413_at_once(small: Stage, lane: str) -> None:
    """EA#827: the size is known from the head; nothing of the body need be read."""
    head = request_bytes(headers=(("Content-Length", str(101 * KIB)),), framed=False)
    refused(small, lane, head, 413)


@pytest.mark.parametrize("kib", [300, 3_000, 30_000])
def test_declared_body_beyond_the_limit_is_413_with_the_body_on_its_way(
    small: Stage, lane: str, kib: int
) -> None:
    """A client that writes all before it reads must see the 413, not a reset."""
    client = small.client(lane)
    client.send(request_bytes(b" " * (kib * KIB)))
    error_of(client.reply(), 413)


def test_chunked_body_that_grows_beyond_the_limit_is_413(small: Stage, lane: str) -> None:
    head = request_bytes(headers=(("Transfer-Encoding", "chunked"),), framed=False)
    refused(small, lane, head + chunked(*[b"x" * (10 * KIB)] * 11), 413)


def test_streamed_chunked_upload_that_grows_beyond_the_limit_is_413(
    small: Stage, lane: str
) -> None:
    """What streams through is counted too: the engine must not get a whole too-large body."""
    head = request_bytes(
        target="/v1/audio/transcriptions",
        headers=(("Transfer-Encoding", "chunked"), ("Content-Type", "multipart/form-data")),
        framed=False,
    )
    client = small.client(lane)
    with contextlib.suppress(ConnectionError):  # it may answer and leave before all is written
        client.send(head + chunked(*[b"x" * (10 * KIB)] * 11))
    error_of(client.reply(), 413)
    assert not any(seen.complete for seen in small.engine.seen)


def test_body_at_the_limit_passes(small: Stage, lane: str) -> None:
    body = BODY + b" " * (100 * KIB - len(BODY))
    assert small.ask(lane, body).status == 200
    # A refused upload of the test before may reach the engine's records only now.
    assert [seen.body for seen in small.engine.seen if seen.complete] == [body]


SLOW_HEADS = {
    "nothing": b"",
    "half_line": b"GET /v1/mod",
    "half_head": b"GET /v1/models HTTP/1.1\r\nHost: x\r\n",
}


@pytest.mark.parametrize("name", sorted(SLOW_HEADS))
def test_slow_head_is_timed_out(small: Stage, lane: str, name: str) -> None:
    """Slow loris: a head that does not complete ends in 408 or a plain close."""
    client = small.client(lane)
    client.send(SLOW_HEADS[name])
    started = time.monotonic()
    assert client.ends_within(2)
    assert time.monotonic() - started > 0.2
    if client.buffer:
        error_of(client.reply(), 408)


def test_head_that_drips_is_timed_out(small: Stage, lane: str) -> None:
    """A byte now and then must not extend the head's time."""
    client = small.client(lane)
    head = request_bytes(BODY, headers=(("X-Pad", "y" * 1000),))
    started = time.monotonic()
    try:
        for at in range(len(head)):
            client.send(head[at : at + 1])
            if not client.silent_for(0.05):
                break
    except ConnectionError:
        pass
    assert time.monotonic() - started < 2
    assert not small.engine.seen


def test_body_that_stops_is_timed_out(small: Stage, lane: str) -> None:
    client = small.client(lane)
    started = time.monotonic()
    client.send(request_bytes(BODY)[:-1])
    error_of(client.reply(), 408)
    assert 0.2 < time.monotonic() - started < 2
    assert client.ends_within(3)
    assert not small.engine.seen


def test_slow_body_that_goes_on_is_not_timed_out(small: Stage, lane: str) -> None:
    """As in nginx, the body's time runs between two reads, not over the whole of it."""
    client = small.client(lane)
    data = request_bytes(BODY + b" " * 8)
    client.send(data[:-8])
    for at in range(8, 0, -1):
        assert client.silent_for(0.1)
        client.send(data[-at : len(data) - at + 1])
    assert client.reply().status == 200


def test_idle_connection_is_closed_without_a_reply(small: Stage, lane: str) -> None:
    client = small.client(lane)
    assert client.ask(BODY).status == 200
    started = time.monotonic()
    assert client.ends_within(2)
    assert time.monotonic() - started > 0.2
    assert not client.buffer, "an idle client was sent something it did not ask for"


def test_requests_of_a_connection_are_counted(small: Stage, lane: str) -> None:
    """keepalive_requests 3: the third reply says close, and it is closed."""
    client = small.client(lane)
    said = [client.ask(BODY).header("connection") for _ in range(3)]
    assert said[-1] == "close" and "close" not in said[:-1], said
    assert client.ends_within(2)
