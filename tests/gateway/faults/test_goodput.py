"""Counts of requests, events and kept SLOs through a real gateway, where the answer is known.

Nothing here depends on how fast anything is: an SLO is one that is always kept or always broken.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from harness import scripts, waiting
from harness.client import Client, prompt, request_bytes
from harness.stage import Conf, Play, Stage
from harness.wire import Wire
from prometheus_client.parser import text_string_to_metric_families

from engines.sim.process import SimEngine
from gateway.slo import CAUSES

LAX = Conf(
    upstream="health_check off; slo ttft=600s tpot=60s e2el=601s;",
    location="policy_header X-KVGate-TTFT-SLO; policy_header X-KVGate-TPOT-SLO;",
)
CHAT = "/v1/chat/completions"
STRICT_TTFT = (("X-KVGate-TTFT-SLO", "1ms"),)
STRICT_TPOT = (("X-KVGate-TPOT-SLO", "1ms"),)


def chat(*deltas: dict[str, Any], finish: str | None = None) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish} for delta in deltas]
    return b"data: " + json.dumps({"id": "chatcmpl-1", "choices": choices}).encode() + b"\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"


def tool(arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": arguments}}]}


ROLE = chat({"role": "assistant", "content": ""})
STOP = chat({}, finish="stop")


class Counts:
    """What the gateway's metrics say of a location, of all lanes: name and a label -> sum."""

    def __init__(self, stage: Stage, location: str = "/") -> None:
        self._stage, self._location = stage, location
        self.before = self._read()

    def _read(self) -> dict[tuple[str, str], float]:
        with Client(self._stage.gateway.admin) as client:
            text = client.ask(b"", method="GET", target="/metrics").body.decode()
        out: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not sample.name.startswith("kvgate_") or "le" in sample.labels:
                    continue
                labels = sample.labels
                if labels.get("location") != self._location:
                    continue
                label = next((labels[n] for n in ("cause", "end", "slo") if n in labels), "")
                key = sample.name.removeprefix("kvgate_").removesuffix("_total"), label
                out[key] = out.get(key, 0.0) + sample.value
        return out

    def after(self, requests: int) -> Callable[..., float]:
        """`grown(name, label)` since the beginning, once so many requests have ended."""
        now: dict[tuple[str, str], float] = {}

        def ended() -> bool:
            now.clear()
            now.update(self._read())
            keys = [key for key in now if key[0] == "finished_requests"]
            return sum(now[key] - self.before.get(key, 0) for key in keys) >= requests

        waiting.until(ended, f"{requests} requests counted")

        def grown(name: str, label: str = "") -> float:
            return now.get((name, label), 0) - self.before.get((name, label), 0)

        return grown


def ask(stage: Stage, lane: str, *events: bytes, target: str = CHAT, **how: Any) -> bytes:
    stage.engine.script = scripts.streams(events)
    return stage.ask(lane, prompt(True), target=target, **how).body


KINDS = ("time_to_first_token", "time_per_output_token", "inter_token_latency",
         "end_to_end_latency", "time_to_first_output")  # fmt: skip


def samples(grown: Callable[..., float]) -> tuple[float, ...]:
    return tuple(grown(f"{kind}_seconds_count") for kind in KINDS)


STREAMS: dict[str, tuple[tuple[bytes, ...], tuple[int, ...], int, int]] = {
    # events -> samples of TTFT, TPOT, ITL, E2EL, first answer; events with output; uncounted
    "one_token": ((ROLE, chat({"content": "a"}), STOP, usage(3, 1)), (1, 0, 0, 1, 1), 1, 0),
    "role_only": ((ROLE, STOP, usage(3, 0)), (0, 0, 0, 0, 0), 0, 0),
    "three": ((ROLE, *[chat({"content": "a"})] * 3, STOP, usage(3, 3)), (1, 1, 2, 1, 1), 3, 0),
    "several_a_chunk": (
        (ROLE, *[chat({"content": "a b c"})] * 2, STOP, usage(3, 6)), (1, 1, 1, 1, 1), 2, 0,
    ),
    "all_in_one_chunk": ((chat({"content": "a b c"}), usage(3, 3)), (1, 1, 0, 1, 1), 1, 0),
    "not_counted": ((ROLE, *[chat({"content": "a"})] * 3, STOP), (1, 1, 2, 1, 1), 3, 1),
    "reasoning": (
        (ROLE, chat({"reasoning": "hm"}), chat({"reasoning_content": "hm"}), chat({"content": "a"}),
         STOP, usage(3, 3)), (1, 1, 2, 1, 1), 3, 0,
    ),
    "only_reasoning": (
        (ROLE, *[chat({"reasoning": "hm"})] * 2, STOP, usage(3, 2)), (1, 1, 1, 1, 0), 2, 0,
    ),
    "tool_call": (
        (ROLE,
         chat(tool("")), *[chat(tool("{}"))] * 2, STOP, usage(3, 9)), (1, 1, 1, 1, 1), 2, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_what_an_answer_adds(play: Play, lane: str, name: str) -> None:
    stage = play(LAX)
    events, expected, chunks, uncounted = STREAMS[name]
    counts = Counts(stage)
    ask(stage, lane, *events)
    grown = counts.after(1)
    assert samples(grown) == expected
    assert grown("chunks") == chunks and grown("uncounted_requests") == uncounted
    assert grown("offered_requests") == grown("finished_requests", "completed") == 1
    empty = name == "role_only"  # without output no first token came in time
    assert grown("good_requests") == (not empty)
    assert grown("slo_misses", "error") == empty
    assert grown("slo_broken", "ttft") == grown("slo_broken", "e2el") == empty
    tokens = chunks if uncounted else grown("completion_tokens")
    assert grown("good_tokens") == tokens and grown("metered_requests") == (not uncounted)
    assert grown("vllm_bench_time_to_first_token_seconds_count") == (not empty)


def test_a_role_is_a_first_token_to_vllm_bench_alone(play: Play, lane: str) -> None:
    """Bounds of both, by this test's own clock: the engine waits for the client each time."""
    stage = play(LAX)
    counts = Counts(stage)
    steps = scripts.Stepwise(ROLE, chat({"reasoning": "hm"}), chat({"content": "b"}), STOP)
    stage.engine.script = steps
    client = stage.client(lane)
    client.send(request_bytes(prompt(True), target=CHAT))
    client_heard = [heard(client, steps, b"assistant")]
    first_sent = time.monotonic()
    client_heard.append(heard(client, steps, b"hm"))
    answer_sent = time.monotonic()
    client_heard.append(heard(client, steps, b'"b"'))
    stop_sent = time.monotonic()
    heard(client, steps, b"stop")
    steps.step()
    while client.chunk():
        pass
    grown = counts.after(1)
    ttft, choice, output, e2el, whole = (
        grown(f"{name}_seconds_sum")
        for name in (
            "time_to_first_token", "vllm_bench_time_to_first_token", "time_to_first_output",
            "end_to_end_latency", "vllm_bench_end_to_end_latency",
        )
    )  # fmt: skip
    assert ttft - choice >= first_sent - client_heard[0] > 0
    assert output - ttft >= answer_sent - client_heard[1] > 0
    assert e2el == pytest.approx(output)
    assert whole - e2el >= stop_sent - client_heard[2] > 0
    assert grown("inter_token_latency_seconds_sum") == pytest.approx(output - ttft)


def heard(client: Wire, steps: scripts.Stepwise, text: bytes) -> float:
    """Lets the engine say one thing; when it was heard."""
    steps.step()
    client.head() if text == b"assistant" else None
    client.chunks_until(text)
    return time.monotonic()


@pytest.fixture(scope="module")
def sims() -> Iterator[list[SimEngine]]:
    """Two simulated engines whose every step takes 20 ms."""
    with ExitStack() as stack:
        args = ("--profile", "fixed:20", "--tokens", "3", "--served-model-name", "m1")
        yield [stack.enter_context(SimEngine(*args)) for _ in range(2)]


def test_ten_requests_of_which_seven_break_an_slo(
    own: Play, lane: str, sims: list[SimEngine]
) -> None:
    """Seven of ten break one SLO each by turns: throughput 10, goodput 3, attainment 0.30."""
    engines = " ".join(f"server {sim.url.removeprefix('http://')};" for sim in sims)
    slo = "slo ttft=600s tpot=60s e2el=601s;"
    stage = own(LAX.but(
        extra=f"upstream sims {{ {engines} model m1; health_check off; {slo} }}",
        locations="location /sims/ { proxy_pass http://sims/; {common} }",
    ))  # fmt: skip
    counts = Counts(stage, "/sims/")
    late = [STRICT_TTFT, STRICT_TPOT]
    body = {"model": "m1", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    body["stream_options"] = {"include_usage": True}
    for number in range(10):
        headers = late[number % 2] if number < 7 else ()
        target = f"/sims{CHAT}"
        reply = stage.ask(lane, json.dumps(body).encode(), target=target, headers=headers)
        assert reply.status == 200 and reply.body.endswith(scripts.DONE)
    grown = counts.after(10)
    good, missed = grown("good_requests"), [grown("slo_misses", cause) for cause in CAUSES]
    assert (good, sum(missed), good / (good + sum(missed))) == (3, 7, 0.30)
    assert grown("finished_requests", "completed") == grown("offered_requests") == 10
    assert (grown("slo_broken", "ttft"), grown("slo_broken", "tpot")) == (4, 3)
    assert grown("slo_misses", "decode") == 3 and grown("slo_misses", "error") == 0
    assert 3 * grown("completion_tokens") == 10 * grown("good_tokens") > 0


def test_failures_count_as_missed_and_clients_that_left_do_not(play: Play, lane: str) -> None:
    stage = play(LAX)
    counts = Counts(stage)
    for script in (
        scripts.says(b'{"error":1}', 400),
        scripts.says(b'{"error":1}', 429),
        scripts.says(b'{"error":1}', 503),
        scripts.says(b'{"error":1}', 500),
        scripts.streams([chat({"content": "a"})], done=False, then="reset"),
    ):
        stage.engine.script = script
        with Client(("127.0.0.1", stage.ports[lane])) as client:
            client.send(request_bytes(prompt(True), target=CHAT))
            client.head()
            stage.wait_quiet()
    stage.engine.script = scripts.starts(ROLE, chat({"content": "a"}))
    client = stage.client(lane)
    client.send(request_bytes(prompt(True), target=CHAT))
    client.head()
    client.chunks_until(b'"a"')
    client.close()
    grown = counts.after(6)
    for end in ("refused", "limited", "overloaded", "cancelled"):
        assert grown("finished_requests", end) == 1, end
    assert grown("finished_requests", "failed") == 2
    assert grown("slo_misses", "error") == 5 and grown("good_requests") == 0
    # Both streams that began had a first token; neither came to its end.
    assert samples(grown) == (2, 0, 0, 0, 2)


def test_an_answer_that_is_no_stream_is_timed_to_its_end(play: Play, lane: str) -> None:
    stage = play(LAX)
    counts = Counts(stage)
    body = {"choices": [{"text": "a"}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    stage.engine.script = scripts.says(json.dumps(body).encode())
    stage.ask(lane, prompt(), headers=STRICT_TTFT)
    stage.ask(lane, b"{}", target="/v1/embeddings")
    grown = counts.after(2)
    assert samples(grown) == (0, 0, 0, 2, 0)
    assert grown("good_requests") == 1 and grown("good_tokens") == 4  # embeddings are no output
    assert sum(grown("slo_misses", cause) for cause in ("error", "prefill", "decode")) == 0


def test_a_request_that_gets_to_no_engine_is_missed(play: Play, lane: str) -> None:
    stage = play(LAX)
    counts = Counts(stage)
    body = json.dumps({"model": "another", "prompt": "x", "stream": True}).encode()
    assert stage.ask(lane, body).status == 404
    grown = counts.after(1)
    assert grown("offered_requests") == grown("finished_requests", "refused") == 1
    assert grown("slo_misses", "error") == 1 and samples(grown) == (0,) * 5
