"""A client that leaves is felt by the engine: it stops generating within moments."""

from __future__ import annotations

import json
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest
from e2e import cases
from e2e.fleet import Engine, Lane
from harness import waiting

SOON_S = (
    5.0  # the gateway needs 0.2 s; the engine looks up between steps, on a machine of two cores
)
ENDLESS = {"max_tokens": 1900, "ignore_eos": True}


def busy(engines: list[Engine]) -> int:
    return sum(engine.running() for engine in engines)


def finished(engines: list[Engine]) -> float:
    """Requests that came to an end of their own; aborted ones are not counted by vLLM."""
    name = "vllm:request_success_total"
    return sum(
        engine.counter(name, finished_reason=reason)
        for engine in engines
        for reason in ("stop", "length")
    )


@pytest.fixture(autouse=True)
def quiet(engines: list[Engine]) -> None:
    waiting.until(lambda: busy(engines) == 0, "engines to be idle", 30)


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "in one piece"])
def test_the_engine_stops_when_the_client_leaves(
    stream: bool, lane: Lane, engines: list[Engine]
) -> None:
    before = finished(engines)
    path, body = cases.chat(stream=stream, **ENDLESS)
    raw = json.dumps(body).encode()
    address = urlsplit(lane.base_url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as client:
        client.sendall(
            f"POST {path} HTTP/1.1\r\nHost: e2e\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(raw)}\r\n\r\n".encode()
            + raw
        )
        if stream:
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
        waiting.until(lambda: busy(engines) == 1, "the engine to be at work", 30)
    left_s = time.monotonic()
    waiting.until(lambda: busy(engines) == 0, "the engine to stop", SOON_S)
    print(f"e2e: idle {time.monotonic() - left_s:.2f} s after the client left")
    assert finished(engines) == before


def test_many_that_leave_at_once_leave_nothing_running(lane: Lane, engines: list[Engine]) -> None:
    path, body = cases.chat(stream=True, **ENDLESS)
    with httpx.Client(timeout=60) as http:
        streams = [http.stream("POST", lane.base_url + path, json=body) for _ in range(8)]
        for stream in streams:
            assert stream.__enter__().status_code == 200
        waiting.until(lambda: busy(engines) == 8, "all streams to be at work", 30)
        for stream in streams:
            stream.__exit__(None, None, None)
    waiting.until(lambda: busy(engines) == 0, "the engines to stop", SOON_S)
