"""The hand-over between two engines: right answers, its hazards, its leases."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from engines.sim.process import SimEngine, SimFailed

Start = Callable[..., SimEngine]
PROMPT = "the water of the land over the sea " * 12
WANT = {"do_remote_decode": True, "do_remote_prefill": False}


def config(role: str, policy: str = "recompute", lease: float = 30.0) -> list[str]:
    extra = {"kv_lease_duration": lease, "handshake_timeout": 0.3}
    value = {"kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": policy,
             "kv_connector_extra_config": extra}
    return ["m", "--tokens", "8", "--kv-transfer-config", json.dumps(value)]


def ask(engine: SimEngine, prompt: str = PROMPT, **more: Any) -> dict[str, Any]:
    body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 8, **more}
    status, value = engine.call("POST", "/v1/completions", body)
    return {"status": status, **value}


def prefill(engine: SimEngine, prompt: str = PROMPT) -> dict[str, Any]:
    value = ask(engine, prompt, max_tokens=1, kv_transfer_params=WANT)
    params: dict[str, Any] = value["kv_transfer_params"]
    return params


def text(value: dict[str, Any]) -> str:
    said: str = value["choices"][0]["text"]
    return said


def metric(engine: SimEngine, name: str, label: str = "") -> float:
    for line in engine.metrics().splitlines():
        if line.startswith(f"vllm:{name}{{") and label in line:
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no metric {name} {label}")


def leases(engine: SimEngine) -> int:
    count: int = engine.state()["transfer"]["leases"]
    return count


def test_a_prompt_prefilled_elsewhere_is_answered_alike(sim: Start) -> None:
    p, d, alone = sim(*config("kv_producer")), sim(*config("kv_consumer")), sim("m", "--tokens", 8)
    params = prefill(p)
    assert list(params) == [
        "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id",
        "remote_request_id", "remote_host", "remote_port", "tp_size", "dcp_size", "pp_size",
        "remote_num_tokens", "remote_blocks_expiry_time", "transfer_mode",
        "remote_prefill_cached_tokens"]
    assert leases(p) == 1 and p.state()["blocks_used"] == len(params["remote_block_ids"][0])
    assert text(ask(d, kv_transfer_params=params)) == text(ask(alone))
    p.wait_for(lambda s: s["transfer"]["leases"] == 0 == s["blocks_used"])
    tokens = params["remote_num_tokens"]
    assert metric(d, "prompt_tokens_by_source_total", "external_kv_transfer") == tokens
    assert metric(d, "prompt_tokens_by_source_total", "local_compute") == 0
    assert metric(d, "external_prefix_cache_hits_total") == tokens
    blocks = -(-tokens // 16)
    assert metric(d, "nixl_bytes_transferred_sum") == blocks * 16 * 1024


def test_only_missing_blocks_move(sim: Start) -> None:
    p, d, alone = sim(*config("kv_producer")), sim(*config("kv_consumer")), sim("m", "--tokens", 8)
    ask(d, kv_transfer_params=prefill(p))
    before = metric(d, "nixl_bytes_transferred_sum")
    longer = PROMPT + "and then more of the same again and again and again"
    params = prefill(p, longer)
    assert params["remote_prefill_cached_tokens"] > 0
    assert text(ask(d, longer, kv_transfer_params=params)) == text(ask(alone, longer))
    moved = (metric(d, "nixl_bytes_transferred_sum") - before) / (16 * 1024)
    assert 0 < moved < len(params["remote_block_ids"][0]) / 2


def test_a_streamed_reply_carries_no_parameters(sim: Start) -> None:
    p = sim(*config("kv_producer"))
    reply = httpx.post(p.url + "/v1/completions", json={
        "model": "m", "prompt": PROMPT, "max_tokens": 1, "stream": True,
        "kv_transfer_params": WANT})
    assert reply.text.endswith("[DONE]\n\n") and "remote_block_ids" not in reply.text
    assert leases(p) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_every_interface_hands_over(sim: Start, path: str) -> None:
    p, d, alone = sim(*config("kv_producer")), sim(*config("kv_consumer")), sim("m", "--tokens", 8)
    limit = "max_output_tokens" if "responses" in path else "max_tokens"
    body: dict[str, Any] = {"model": "m", "temperature": 0, limit: 8, "input": PROMPT,
                            "messages": [{"role": "user", "content": PROMPT}]}
    first = p.call("POST", path, {**body, limit: 1, "kv_transfer_params": WANT})[1]
    got = d.call("POST", path, {**body, "kv_transfer_params": first["kv_transfer_params"]})[1]
    plain = alone.call("POST", path, body)[1]

    def said(value: dict[str, Any]) -> str:
        found = value.get("choices") or value.get("content") or value["output"][0]["content"]
        return found[0]["message"]["content"] if "choices" in value else str(found[0]["text"])
    assert said(got) == said(plain)
    assert metric(d, "prompt_tokens_by_source_total", "external_kv_transfer") > 0


def test_stale_parameters_give_a_wrong_answer_and_status_200(sim: Start) -> None:
    p = sim(*config("kv_producer", lease=0.2), "--num-gpu-blocks", 40)
    d, alone = sim(*config("kv_consumer")), sim("m", "--tokens", 8)
    params = prefill(p)
    p.wait_for(lambda s: s["transfer"]["leases"] == 0)
    assert metric(p, "nixl_num_kv_expired_reqs_total") == 1
    for i in range(4):
        ask(p, f"other {i} " * 40)
    wrong = ask(d, kv_transfer_params=params)
    assert wrong["status"] == 200 and text(wrong) != text(ask(alone))
    assert metric(d, "prompt_tokens_by_source_total", "external_kv_transfer") > 0
    p.wait_for(lambda _: metric(p, "nixl_num_notifications_after_expiry_total") == 1)
    # The blocks it filled are wrong for whoever hits them later, too.
    assert text(ask(d)) != text(ask(alone))


def test_parameters_used_twice_are_right_only_while_nothing_moved_in(sim: Start) -> None:
    p = sim(*config("kv_producer"), "--num-gpu-blocks", 40)
    d1, d2, d3 = (sim(*config("kv_consumer")) for _ in range(3))
    params = prefill(p)
    right = text(ask(d1, kv_transfer_params=params))
    p.wait_for(lambda s: s["transfer"]["leases"] == 0)
    assert text(ask(d2, kv_transfer_params=params)) == right
    for i in range(4):
        ask(p, f"other {i} " * 40)
    assert text(ask(d3, kv_transfer_params=params)) != right


def test_unread_prefills_pin_the_cache_until_their_leases_end(sim: Start) -> None:
    p = sim(*config("kv_producer", lease=1.0), "--num-gpu-blocks", 14)
    prefill(p, PROMPT)
    began = time.monotonic()
    assert ask(p, "something else " * 40, max_tokens=1)["status"] == 200
    assert time.monotonic() - began > 0.3


def test_heartbeats_keep_a_lease_while_the_decoder_is_busy(sim: Start) -> None:
    p = sim(*config("kv_producer", lease=0.9))
    d = sim(*config("kv_consumer", lease=0.9), "--max-num-seqs", 1, "--profile", "fixed:100")
    alone = sim("m", "--tokens", 8)
    with httpx.stream("POST", d.url + "/v1/completions", json={
            "model": "m", "prompt": "x", "max_tokens": 24, "ignore_eos": True, "stream": True,
            }) as busy:
        lines = busy.iter_lines()
        next(lines)
        assert text(ask(d, kv_transfer_params=prefill(p))) == text(ask(alone))
        list(lines)
    assert metric(p, "nixl_num_kv_expired_reqs_total") == 0


def test_a_decoder_that_lost_its_client_lets_go(sim: Start) -> None:
    p = sim(*config("kv_producer"))
    d = sim(*config("kv_consumer"), "--max-num-seqs", 1, "--profile", "fixed:50")
    with httpx.stream("POST", d.url + "/v1/completions", json={
            "model": "m", "prompt": "x", "ignore_eos": True, "max_tokens": 900, "stream": True}):
        params = prefill(p)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(d.url + "/v1/completions", timeout=0.2, json={
                "model": "m", "prompt": PROMPT, "kv_transfer_params": params})
        p.wait_for(lambda s: s["transfer"]["leases"] == 0 == s["blocks_used"])
    d.wait_for(lambda s: s["blocks_used"] == 0)


def test_a_refused_decode_lets_go(sim: Start) -> None:
    p, d = sim(*config("kv_producer")), sim(*config("kv_consumer"))
    assert ask(d, kv_transfer_params=prefill(p), temperature=-1)["status"] == 400
    p.wait_for(lambda s: s["transfer"]["leases"] == 0 == s["blocks_used"])


def test_an_aborted_prefill_keeps_nothing(sim: Start) -> None:
    p = sim(*config("kv_producer"), "--profile", "fixed:300")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(p.url + "/v1/completions", timeout=0.1, json={
            "model": "m", "prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": WANT})
    p.wait_for(lambda s: s["aborted"] == 1 and s["blocks_used"] == 0)
    assert leases(p) == 0


@pytest.mark.parametrize(("policy", "status"), [("recompute", 200), ("fail", 500)])
def test_an_unreachable_prefill_engine(sim: Start, policy: str, status: int) -> None:
    p, d, alone = (sim(*config("kv_producer")), sim(*config("kv_consumer", policy)),
                   sim("m", "--tokens", 8))
    params = prefill(p)
    p.stop()
    began = time.monotonic()
    value = ask(d, kv_transfer_params=params)
    assert value["status"] == status and time.monotonic() - began >= 0.3
    assert metric(d, "nixl_num_failed_transfers_total") == 1
    assert metric(d, "prompt_tokens_by_source_total", "external_kv_transfer") == 0
    if status == 200:
        assert text(value) == text(ask(alone))
    d.wait_for(lambda s: s["blocks_used"] == 0)


def test_a_restarted_prefill_engine_is_another_one(sim: Start) -> None:
    p, d, alone = sim(*config("kv_producer")), sim(*config("kv_consumer")), sim("m", "--tokens", 8)
    ask(d, "warm up", kv_transfer_params=prefill(p, "warm up"))
    params = prefill(p)
    p.faults(["restart"])
    assert text(ask(d, kv_transfer_params=params)) == text(ask(alone))  # computed here
    assert metric(d, "nixl_num_failed_transfers_total") == 1
    assert text(ask(d, "go " + PROMPT, kv_transfer_params=prefill(p, "go " + PROMPT))) == text(
        ask(alone, "go " + PROMPT))


def test_missing_fields_fail_and_kill_a_fragile_engine(sim: Start) -> None:
    d = sim(*config("kv_consumer"))
    bad = {"do_remote_prefill": True}
    assert ask(d, kv_transfer_params=bad)["status"] == 500
    assert d.call("GET", "/health")[0] == 200
    with SimEngine(*config("kv_consumer"), "--fragile") as fragile:
        assert ask(fragile, kv_transfer_params=bad)["status"] == 500
        deadline = time.monotonic() + 5
        with pytest.raises(OSError):
            while time.monotonic() < deadline:
                fragile.call("GET", "/health")


def test_a_missing_host_parks_the_request_for_ever(sim: Start) -> None:
    d = sim(*config("kv_consumer"))
    params = {"do_remote_prefill": True, "remote_block_ids": [[1]], "remote_engine_id": "e",
              "remote_request_id": "r"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(d.url + "/v1/completions", timeout=0.3, json={
            "model": "m", "prompt": PROMPT, "kv_transfer_params": params})
    d.wait_for(lambda s: s["aborted"] == 1 and s["blocks_used"] == 0)


def test_engines_used_against_their_role_give_wrong_answers(sim: Start) -> None:
    both, alone = [sim(*config("kv_both")) for _ in range(2)], sim("m", "--tokens", 8)
    right = text(ask(alone))
    assert text(ask(both[1], kv_transfer_params=prefill(both[0]))) == right
    p, d = sim(*config("kv_producer")), sim(*config("kv_consumer"))
    assert text(ask(p, kv_transfer_params=prefill(d))) != right


def test_transfer_time_follows_the_link_and_is_shared(sim: Start) -> None:
    link = ["--link-gb-s", "0.01", "--kv-bytes-per-token", "10000"]
    p, d = sim(*config("kv_producer"), *link), sim(*config("kv_consumer"), *link)
    params = [prefill(p, f"{i} " + PROMPT) for i in range(3)]
    size = len(params[0]["remote_block_ids"][0]) * 16 * 10_000 / 0.01e9
    began = time.monotonic()
    ask(d, "0 " + PROMPT, kv_transfer_params=params[0])
    assert time.monotonic() - began > size * 0.9
    began = time.monotonic()
    bodies = [(f"{i} " + PROMPT, params[i]) for i in (1, 2)]
    with httpx.Client() as client, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda b: client.post(d.url + "/v1/completions", timeout=10, json={
            "model": "m", "prompt": b[0], "max_tokens": 1, "kv_transfer_params": b[1]}),
            bodies))
    assert time.monotonic() - began > size * 1.7


def test_without_a_connector_the_parameters_mean_nothing(engine: SimEngine) -> None:
    value = ask(engine, kv_transfer_params=WANT)
    assert value["status"] == 200 and value["kv_transfer_params"] is None


@pytest.mark.parametrize("value", [
    {"kv_connector": "Other"}, {"kv_connector": "NixlConnector", "kv_role": "x"},
    {"kv_connector": "NixlConnector", "kv_load_failure_policy": "x"}])
def test_other_configurations_are_refused(value: dict[str, str]) -> None:
    with pytest.raises((SystemExit, SimFailed)):
        SimEngine("m", "--kv-transfer-config", json.dumps(value), thread=True).start()
