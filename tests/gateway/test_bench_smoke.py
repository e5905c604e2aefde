"""The relay bench at tiny scale: its parts work together, and a proxy that breaks a reply is
caught.

No figure is judged here, only that the load generator can tell right from wrong and that the report
computes what it says.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from harness import model_folder

BENCH = Path(__file__).parents[1] / "bench"
PARTS = ("wire", "client", "report", "proc", "prompts", "evidence")
SHORT = ("--warm", "0.1", "--seconds", "0.3", "--connections", "4")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The bench's modules, which are scripts beside each other and no package."""
    monkeypatch.syspath_prepend(str(BENCH))
    modules: dict[str, ModuleType] = {name: importlib.import_module(name) for name in PARTS}
    yield SimpleNamespace(**modules)
    for name in PARTS:
        del sys.modules[name]


@contextmanager
def engines(*options: str) -> Iterator[tuple[int, list[int]]]:
    """(pid, ports) of running stand-in engines."""
    command = [sys.executable, str(BENCH / "upstream.py"), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield process.pid, json.loads(process.stdout.readline())["ports"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def load(scenario: str, pid: int, ports: list[int], *options: str) -> dict[str, Any]:
    where = ("--to", ",".join(map(str, ports)), "--pids", str(pid))
    command = [sys.executable, str(BENCH / "load.py"), scenario, *where, *SHORT, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("rate", ["0", "100"])
def test_small_requests_are_answered_and_their_cost_is_counted(rate: str) -> None:
    with engines() as (pid, ports):
        found = load("small", pid, ports, "--rate", rate)
    assert found["errors"] == {}
    assert found["window"]["replies"] > 0
    assert found["us_each"] > 0


def test_streams_run_to_their_end_with_probes_beside_them() -> None:
    with engines() as (pid, ports):
        options = ("--streams", "10", "--probes", "50", "--probe-seconds", "0.3")
        found = load("streams", pid, ports, *options)
    assert found["errors"] == {}
    assert found["streams_held"] == 10
    assert found["window"]["chunks"] > 0
    assert found["ttft_ms"]["count"] > 0


def test_idle_streams_are_opened_and_weighed() -> None:
    with engines() as (pid, ports):
        found = load("idle", pid, ports, "--streams", "10")
    assert found["errors"] == {}
    assert found["full_kib"]["rss"] > 0


@pytest.mark.parametrize(
    ("fault", "scenario", "error"),
    [
        ("text", "small", "wrong body"),
        ("status", "small", "status 500"),
        ("drop", "streams", "wrong event"),
        ("swap", "streams", "wrong event"),
        ("cut", "streams", "lost"),
    ],
)
def test_a_broken_reply_is_an_error(fault: str, scenario: str, error: str) -> None:
    with engines("--fault", fault) as (pid, ports):
        found = load(scenario, pid, ports, "--streams", "3", "--rate", "20")
    assert error in found["errors"]


def test_prompts_are_answered_by_engines_that_hold_their_documents(
    bench: SimpleNamespace, tmp_path: Path
) -> None:
    folder = model_folder.write(tmp_path / "model")
    with engines("--tokenizer", str(folder)) as (pid, ports):
        found = load("small", pid, ports, "--rate", "100", "--prompts", "1000000")
        held = [json.loads(bench.evidence.get(f"http://127.0.0.1:{p}/bench/held")) for p in ports]
        bench.evidence.get(f"http://127.0.0.1:{ports[0]}/bench/reset", "POST")
        again = json.loads(bench.evidence.get(f"http://127.0.0.1:{ports[0]}/bench/held"))
    assert found["errors"] == {}
    asked = sum(one["right"] + one["wrong"] for one in held)
    assert asked == sum(bench.prompts.shared(1_000_000 + at) >= 0 for at in range(found["replies"]))
    assert asked > 0 and all(one["tokens"] % 16 == 0 for one in held)
    assert set(again.values()) == {0}


def test_prompts_share_documents_and_nothing_else(bench: SimpleNamespace) -> None:
    made = [json.loads(bench.prompts.messages(number)) for number in range(400)]
    firsts = [bench.prompts.shared(number) for number in range(400)]
    assert firsts.count(-1) == 100
    systems: dict[str, int] = {}
    for (system, question), first in zip(made, firsts, strict=True):
        assert 1500 < len((system["content"] + question["content"]).encode()) < 2800
        assert systems.setdefault(system["content"], first) == first
    assert sum(first < 0 for first in systems.values()) == 100
    assert len({question["content"] for _, question in made}) == 400


LOCAL = 'kvgate_prompts_total{source="local"} %d'
MATCHED = 'kvgate_kv_matched_tokens_total{tier="device"} %d'
PLACED = 'vllm_router_kv_placement_lookups_total{result="hit"} %d'
BY_PREFIX = (
    'vllm_router_prefix_routing_decisions_total{policy="cache_aware",outcome="prefix_hit"} %d'
)


@pytest.mark.parametrize(
    ("told", "share"),
    [
        ([LOCAL % 100, MATCHED % 6000], 1.0),
        ([LOCAL % 100, MATCHED % 3000], 0.5),
        ([LOCAL % 50, 'kvgate_prompts_total{source="bytes"} 50', MATCHED % 6000], 0.5),
        ([LOCAL % 0, 'kvgate_prompts_total{source="bytes"} 100', MATCHED % 6000], 0.0),
        ([PLACED % 60, 'vllm_router_kv_placement_lookups_total{result="miss"} 40'], 0.6),
        ([BY_PREFIX % 45], 0.9),
        ([], 0.0),
    ],
)
def test_a_proxy_that_finds_too_little_is_seen(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, told: list[str], share: float
) -> None:
    monkeypatch.setattr(bench.evidence, "get", lambda url, method="GET": "\n".join(told))
    grown = bench.evidence.metrics("http://proxy")
    seen = {"right": 90, "wrong": 10, "again": 50, "tokens": 6000}
    assert bench.evidence.found_share(grown, seen)[0] == pytest.approx(share)


def stream_bytes(bench: SimpleNamespace, ask: Any) -> list[bytes]:
    """The events of a whole reply, each by itself."""
    wire = bench.wire
    head = wire.event_head(ask.nonce)
    tokens = [head + wire.TOKENS[i] + wire.EVENT_TAIL for i in range(ask.chunks)]
    return [head + wire.ROLE_TAIL, *tokens, *wire.closing_events(head, ask.usage)]


def receive(bench: SimpleNamespace, ask: Any, reads: list[bytes]) -> Any:
    """Feed a connection that has sent `ask` with these reads; return it."""
    connection = bench.client.Connection(bench.client.Tally(), b"test")
    connection.connection_made(SimpleNamespace(write=lambda _: None, abort=lambda: None))
    connection.ask(ask, lambda _: None)
    for data in reads:
        connection.data_received(data)
    return connection


@pytest.mark.parametrize("size", [1, 7, 300, 100_000])
def test_a_stream_framed_anew_is_still_right(bench: SimpleNamespace, size: int) -> None:
    ask = bench.wire.Ask(b"bench-000000000000000001", True, 5, 20, True)
    body = b"".join(stream_bytes(bench, ask))
    framed = [bench.wire.chunk(body[i : i + 40]) for i in range(0, len(body), 40)]
    whole = bench.wire.SSE_HEAD % ask.nonce + b"".join(framed) + bench.wire.LAST_CHUNK
    found = receive(bench, ask, [whole[i : i + size] for i in range(0, len(whole), size)])
    assert found.ok
    assert not found.tally.errors
    assert found.tally.chunks == 5


@pytest.mark.parametrize("missing", range(8))
def test_a_stream_without_one_of_its_events_is_wrong(bench: SimpleNamespace, missing: int) -> None:
    ask = bench.wire.Ask(b"bench-000000000000000001", True, 5, 20, False)
    events = stream_bytes(bench, ask)
    del events[missing]
    reads = [bench.wire.SSE_HEAD % ask.nonce, *map(bench.wire.chunk, events)]
    found = receive(bench, ask, [*reads, bench.wire.LAST_CHUNK][: len(reads) + 1])
    assert not found.ok
    assert found.tally.errors


def test_the_report_takes_medians_and_the_ttft_of_the_same_round(bench: SimpleNamespace) -> None:
    def run(turn: int, proxy: str, cost: float, ttft: float) -> Any:
        found = {"us_each": cost, "ttft_ms": {"p50": ttft, "p99": 2 * ttft}}
        found |= {"errors": {}, "error_samples": [], "lag_ms": {"p99": 0.1}}
        return bench.report.Run(turn, proxy, "streams", found)

    direct = [run(turn, "direct", 1, 0.5 + turn) for turn in range(3)]
    ours = [run(turn, "kvgate", 10 + turn, 1 + turn) for turn in range(3)]
    nginx = [run(turn, "nginx", 10, 1 + turn) for turn in range(3)]
    line = bench.report.summary(direct + ours + nginx)
    assert line["per_chunk_us"] == {"kvgate": 11, "nginx": 10}
    assert line["added_ttft_ms"]["kvgate"] == {"p50": 0.5, "p99": 1.0}
    assert line["ratios"]["per_chunk_us"] == {"kvgate/nginx": 1.1}
    assert line["targets"] == [
        {"target": "per_chunk_us kvgate <= 1.15 x nginx", "ratio": 1.1, "met": True}
    ]
    assert json.loads(json.dumps(line)) == line


def test_cpu_time_counts_what_a_process_has_used(bench: SimpleNamespace) -> None:
    me = [os.getpid()]
    before = bench.proc.cpu_ns(me)
    sum(range(200_000))
    assert bench.proc.cpu_ns(me) > before
