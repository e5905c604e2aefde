"""The metrics page against vLLM's names and types, and its numbers against what happened."""

from __future__ import annotations

import socket
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from engines.sim.process import SimEngine

TYPES = """
num_requests_running gauge
num_requests_waiting gauge
num_requests_waiting_by_reason gauge
engine_sleep_state gauge
kv_cache_usage_perc gauge
cache_config_info gauge
prefix_cache_queries_total counter
prefix_cache_hits_total counter
external_prefix_cache_queries_total counter
external_prefix_cache_hits_total counter
num_preemptions_total counter
prompt_tokens_total counter
prompt_tokens_by_source_total counter
prompt_tokens_cached_total counter
prompt_tokens_cached_by_source_total counter
generation_tokens_total counter
request_success_total counter
admission_rejections_total counter
request_prompt_tokens histogram
request_generation_tokens histogram
iteration_tokens_total histogram
request_max_num_generation_tokens histogram
request_params_n histogram
request_params_max_tokens histogram
time_to_first_token_seconds histogram
inter_token_latency_seconds histogram
request_time_per_output_token_seconds histogram
e2e_request_latency_seconds histogram
request_queue_time_seconds histogram
request_inference_time_seconds histogram
request_prefill_time_seconds histogram
request_decode_time_seconds histogram
request_num_preemptions histogram
request_prefill_kv_computed_tokens histogram
"""
NIXL = """
nixl_xfer_time_seconds histogram
nixl_post_time_seconds histogram
nixl_bytes_transferred histogram
nixl_num_descriptors histogram
nixl_num_failed_transfers_total counter
nixl_num_failed_notifications_total counter
nixl_num_kv_expired_reqs_total counter
nixl_num_notifications_after_expiry_total counter
"""


def types(engine: SimEngine) -> set[str]:
    return {line.removeprefix("# TYPE vllm:") for line in engine.metrics().splitlines()
            if line.startswith("# TYPE vllm:") and "_created" not in line}


def values(engine: SimEngine) -> dict[str, float]:
    out: dict[str, float] = {}
    for family in text_string_to_metric_families(engine.metrics()):
        for sample in family.samples:
            extra = {k: v for k, v in sample.labels.items()
                     if k not in ("engine", "model_name", "le")}
            key = sample.name.removeprefix("vllm:") + "".join(f"|{v}" for v in extra.values())
            out[key] = sample.value
            told = sample.labels.get("model_name")
            assert told == "m" or family.name == "vllm:cache_config_info"
    return out


def lines(text: str) -> set[str]:
    return set(text.strip().splitlines())


def test_names_and_types_are_vllms(sim: Callable[..., SimEngine]) -> None:
    assert types(sim("m")) == lines(TYPES)
    transfer = '{"kv_connector": "NixlConnector"}'
    assert types(sim("m", "--kv-transfer-config", transfer)) == lines(TYPES) | lines(NIXL)


def test_numbers_follow_the_requests(sim: Callable[..., SimEngine]) -> None:
    engine = sim("m", "--tokens", 5)
    body = {"model": "m", "prompt": "the water " * 20, "temperature": 0, "max_tokens": 5}
    for _ in range(2):
        usage = engine.call("POST", "/v1/completions", body)[1]["usage"]
    engine.call("POST", "/v1/completions", {**body, "max_tokens": 2})
    v, prompt = values(engine), usage["prompt_tokens"]
    hit = (prompt - 1) // 16 * 16
    assert v["prompt_tokens_total"] == 3 * prompt == v["prefix_cache_queries_total"]
    assert v["prefix_cache_hits_total"] == 2 * hit
    assert v["prompt_tokens_by_source_total|local_cache_hit"] == 2 * hit
    assert v["prompt_tokens_by_source_total|local_compute"] == 3 * prompt - 2 * hit
    assert v["generation_tokens_total"] == 12
    assert v["request_success_total|stop"] == 2 and v["request_success_total|length"] == 1
    assert v["time_to_first_token_seconds_count"] == 3
    assert v["inter_token_latency_seconds_count"] == 9
    assert v["request_generation_tokens_sum"] == 12
    assert v["num_requests_running"] == 0 == v["kv_cache_usage_perc"]


def test_gauges_show_load_as_it_is(sim: Callable[..., SimEngine]) -> None:
    engine = sim("m", "--tokens", 1000, "--profile", "fixed:50", "--max-num-seqs", 1)
    data = b'{"model":"m","prompt":"x y z","max_tokens":900,"ignore_eos":true}'
    head = (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(data))
    socks = [socket.create_connection(("127.0.0.1", engine.port), 5) for _ in range(3)]
    try:
        for sock in socks:
            sock.sendall(head + data)
        engine.wait_for(lambda s: s["running"] == 1 and s["waiting"] == 2)
        v = values(engine)
        assert v["num_requests_running"] == 1 and v["num_requests_waiting"] == 2
        assert v["num_requests_waiting_by_reason|capacity"] == 2
        assert 0 < v["kv_cache_usage_perc"] < 1
    finally:
        for sock in socks:
            sock.close()
    engine.wait_for(lambda s: s["aborted"] == 3)
    assert values(engine)["request_success_total|abort"] == 3


def test_token_buckets_end_with_the_context(sim: Callable[..., SimEngine]) -> None:
    page = sim("m", "--max-model-len", 2048).metrics()
    assert 'request_prompt_tokens_bucket{engine="0",le="2000.0",model_name="m"}' in page
    assert 'request_prompt_tokens_bucket{engine="0",le="5000.0",model_name="m"}' not in page
    assert 'admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 0.0' in page


def test_ranks_are_told_apart(sim: Callable[..., SimEngine]) -> None:
    engine = sim("m", "--data-parallel-size", 2)
    page = engine.metrics()
    assert 'vllm:num_requests_running{engine="0",model_name="m"} 0.0' in page
    assert 'vllm:num_requests_running{engine="1",model_name="m"} 0.0' in page
