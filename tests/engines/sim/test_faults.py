"""Scripted faults, seen from the client's end of the connection."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from engines.sim.faults import Fault, FaultError
from engines.sim.process import SimEngine

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}],
                       "temperature": 0, "stream": True}
CHUNKS = 8  # role, five words, finish, [DONE]
Start = Callable[..., SimEngine]
CLIENT = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))  # one TLS set-up


@dataclass(frozen=True)
class Seen:
    status: int
    chunks: int
    error: str
    text: str
    seconds: float
    first_s: float


def see(engine: SimEngine, timeout: float = 5.0, **change: Any) -> Seen:
    """One streamed chat request, read to its end however it ends."""
    began = time.monotonic()
    status, text, error, first = 0, "", "", 0.0
    try:
        with CLIENT.stream("POST", engine.url + "/v1/chat/completions", json={**ASK, **change},
                           timeout=timeout) as reply:
            status = reply.status_code
            for part in reply.iter_text():
                first = first or time.monotonic() - began
                text += part
    except httpx.HTTPError as exc:
        error = type(exc).__name__
    return Seen(status, text.count("\n\n"), error, text, time.monotonic() - began, first)


def clean(engine: SimEngine) -> None:
    engine.wait_for(lambda s: s["running"] == s["waiting"] == s["blocks_used"] == 0)


@pytest.fixture(scope="module")
def faulty() -> Any:
    with SimEngine("m", "--tokens", 6, thread=True) as engine:
        yield engine


@pytest.mark.parametrize(("spec", "chunks", "error"), [
    ("cut:after=3", 3, "RemoteProtocolError"), ("cut:after=3,how=rst", 3, "ReadError"),
    ("half_chunk:after=2", 2, "RemoteProtocolError"), ("cut:after=0", 0, "RemoteProtocolError"),
    ("silent_after:after=4", 4, "ReadTimeout"), ("reset", 0, "RemoteProtocolError"),
    ("reset:how=rst", 0, "ReadError"), ("silent", 0, "ReadTimeout"),
    ("garbage", 0, "RemoteProtocolError")])
def test_broken_replies(faulty: SimEngine, spec: str, chunks: int, error: str) -> None:
    faulty.faults([spec + (",times=1" if ":" in spec else ":times=1")])
    seen = see(faulty, timeout=0.5 if error == "ReadTimeout" else 10)
    assert (seen.chunks, seen.error) == (chunks, error)
    assert see(faulty).chunks == CHUNKS  # once only
    clean(faulty)


def test_a_half_chunk_really_is_half_of_one(faulty: SimEngine) -> None:
    faulty.faults(["half_chunk:after=1"])
    body = b'{"model":"m","prompt":"x","stream":true}'
    with socket.create_connection(("127.0.0.1", faulty.port), 5) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json"
                     b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        data = b""
        while part := sock.recv(65536):
            data += part
    chunks = data.split(b"\r\n\r\n", 1)[1].split(b"\r\n")
    assert len(chunks) == 4 and len(chunks[1]) == int(chunks[0], 16)
    assert 0 < len(chunks[3]) < int(chunks[2], 16)


@pytest.mark.parametrize("spec", ["cut:after=1", "half_chunk:after=1", "silent_after:after=1"])
def test_whole_replies_break_half_way(faulty: SimEngine, spec: str) -> None:
    faulty.faults([spec])
    silent = spec.startswith("silent")
    seen = see(faulty, timeout=0.5 if silent else 10, stream=False)
    assert seen.error == ("ReadTimeout" if silent else "RemoteProtocolError")
    clean(faulty)


def test_an_error_event_ends_the_stream(faulty: SimEngine) -> None:
    faulty.faults(["error_after:after=2"])
    seen = see(faulty)
    assert seen.status == 200 and not seen.error and seen.chunks == 4
    assert '"error":{"message":"scripted fault"' in seen.text
    assert seen.text.endswith("data: [DONE]\n\n")
    clean(faulty)


def test_status_and_retry_after(faulty: SimEngine) -> None:
    faulty.faults(["status:code=429,retry_after=7,times=1"])
    reply = httpx.post(faulty.url + "/v1/chat/completions", json=ASK)
    assert reply.status_code == 429 and reply.headers["retry-after"] == "7"
    assert reply.json()["error"]["code"] == 429
    assert see(faulty).status == 200


def test_delays(faulty: SimEngine) -> None:
    faulty.faults(["slow_tokens:ms=30"])
    assert see(faulty).seconds >= 0.03 * CHUNKS
    faulty.faults(["slow_first:ms=150"])
    assert see(faulty).first_s >= 0.15
    faulty.faults(["delay:ms=150"])
    assert see(faulty).seconds >= 0.15
    assert see(faulty, stream=False).seconds >= 0.15


def test_health_and_chat_fail_apart(faulty: SimEngine) -> None:
    faulty.faults(["unhealthy"])
    assert faulty.call("GET", "/health")[0] == 503 and see(faulty).chunks == CHUNKS
    faulty.faults(["status:code=500"])
    assert faulty.call("GET", "/health")[0] == 200 and see(faulty).status == 500
    assert faulty.call("GET", "/v1/models")[0] == 200
    faulty.faults(["status:code=500,path=/v1/models"])
    assert faulty.call("GET", "/v1/models")[0] == 500 and see(faulty).status == 200


def test_times_skip_and_probability(faulty: SimEngine) -> None:
    faulty.faults(["status:times=2,skip=1"])
    assert [see(faulty).status for _ in range(5)] == [200, 500, 500, 200, 200]
    runs = []
    for _ in range(2):
        faulty.faults(["status:p=0.5,seed=3"])
        runs.append([see(faulty, max_tokens=1).status for _ in range(20)])
    assert runs[0] == runs[1] and 3 < runs[0].count(500) < 17
    hits = faulty.state()["faults"]
    assert hits == [{"spec": "status:p=0.5,seed=3", "hits": runs[0].count(500)}]


def test_faults_given_at_start_and_replaced(sim: Start) -> None:
    engine = sim("m", "--fault", "status:code=503", "--fault", "delay:ms=1")
    assert see(engine).status == 503
    engine.faults([])
    assert see(engine).status == 200


def test_a_dead_engine_stays_up_and_says_so(sim: Start) -> None:
    engine = sim("m")
    engine.faults(["die"])
    assert engine.call("GET", "/health")[0] == 503
    status, body = engine.call("POST", "/v1/chat/completions", {**ASK, "stream": False})
    assert status == 500 and "EngineCore" in body["error"]["message"]


def test_a_restart_fails_what_runs(sim: Start) -> None:
    engine = sim("m", "--tokens", 500, "--profile", "fixed:20")
    with httpx.stream("POST", engine.url + "/v1/chat/completions", json=ASK) as reply:
        lines = reply.iter_lines()
        next(lines)
        engine.faults(["restart"])
        rest = list(lines)
    assert '"error"' in rest[-4] and rest[-2] == "data: [DONE]"
    assert engine.state()["blocks_used"] == 0


@pytest.mark.parametrize(("spec", "says"), [
    ("boom", "unknown fault `boom`"), ("cut:before=3", "has no key `before`"),
    ("cut:after", "has no key `after`"), ("cut:after=x", "must be a number"),
    ("cut:how=soft", "must be fin or rst")])
def test_bad_specs_are_explained(faulty: SimEngine, spec: str, says: str) -> None:
    with pytest.raises(FaultError, match=says):
        Fault.parse(spec)
    with pytest.raises(ValueError, match=says):
        faulty.faults([spec])
