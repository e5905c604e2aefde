"""Reading what an engine says: as vLLM 0.32.0 says it, and as older or broken ones do."""

from __future__ import annotations

import json

import httpx
import pytest

from engines.vllm.probe import (
    REPLY_BYTES_MAX,
    EventSource,
    Load,
    ModelCard,
    Reply,
    capabilities,
    load,
    probe,
    probe_load,
)

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="small"} 3.0
vllm:num_requests_running{engine="1",model_name="small"} 1.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="small"} 2.0
vllm:num_requests_waiting{engine="1",model_name="small"} 0.0
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="182",\
prefix_caching_hash_algo="sha256"} 1.0
"""
MODELS = {
    "object": "list",
    "data": [
        {"id": "small", "object": "model", "root": "/models/small", "max_model_len": 2048},
        {"id": "tuned", "root": "/loras/tuned", "parent": "small", "max_model_len": None},
    ],
}
SOURCES = {
    "1": {"publisher": "zmq", "endpoint": "tcp://*:5558", "replay_endpoint": None, "topic": ""},
    "0": {
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:5657",
        "topic": "kv",
    },
}


def reply(value: object, status: int = 200) -> Reply:
    return Reply(status, value.encode() if isinstance(value, str) else json.dumps(value).encode())


FULL = {
    "/health": reply(""),
    "/v1/models": reply(MODELS),
    "/version": reply({"version": "0.32.0"}),
    "/metrics": reply(METRICS),
    "/kv_event_sources": reply(SOURCES),
}


def test_everything_is_read() -> None:
    found = capabilities(FULL)
    assert found.ready
    assert found.version == "0.32.0"
    assert found.models == (
        ModelCard("small", "/models/small", "", 2048),
        ModelCard("tuned", "/loras/tuned", "small", 0),
    )
    assert (found.block_size, found.blocks, found.hash_algorithm) == (32, 182, "sha256")
    assert found.load == Load(running=4, waiting=2)
    assert found.events == (
        EventSource(0, "tcp://*:5557", "tcp://*:5657", "kv"),
        EventSource(1, "tcp://*:5558", "", ""),
    )
    assert found.missing == ()


def test_an_older_engine_lacks_endpoints_and_nothing_breaks() -> None:
    found = capabilities({**FULL, "/kv_event_sources": reply({"detail": "Not Found"}, 404)})
    assert found.ready
    assert found.events == ()
    assert found.missing == ("/kv_event_sources: HTTP 404",)


def test_a_dead_engine_is_not_ready() -> None:
    found = capabilities({**FULL, "/health": reply("", 503)})
    assert not found.ready
    assert found.missing == ("/health: HTTP 503",)


def test_an_engine_without_event_publisher_has_no_sources() -> None:
    sources = {"0": {"publisher": "null", "endpoint": "tcp://*:5557"}}
    assert capabilities({**FULL, "/kv_event_sources": reply(sources)}).events == ()
    assert capabilities({**FULL, "/kv_event_sources": reply({})}).events == ()


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/metrics", "/kv_event_sources"])
@pytest.mark.parametrize(
    "body", ["", "{", "[]", "null", "7", '{"data": 1}', '{"0": 1}', '{"a": {}}', "x{ 1 2 3 4", "\0"]
)
def test_nonsense_is_noted_and_never_raised(path: str, body: str) -> None:
    found = capabilities({**FULL, path: reply(body)})
    assert found.ready
    others = [entry for entry in found.missing if not entry.startswith(path)]
    assert others == []


def test_load_of_an_engine_that_does_not_tell() -> None:
    assert load("# nothing\n") is None
    assert load("vllm:num_requests_running 0.0\n") == Load(0, 0)
    assert not Load(0, 1).idle
    assert Load(0, 0).idle


async def test_probe_asks_all_and_survives_refusals_and_floods() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/version":
            raise httpx.ConnectError("refused")
        if request.url.path == "/metrics":
            return httpx.Response(200, content=b"#" * (REPLY_BYTES_MAX + 1))
        known = FULL[request.url.path]
        return httpx.Response(known.status, content=known.body)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        found = await probe(client, "http://engine")
        assert await probe_load(client, "http://engine") is None
    assert found.ready
    assert found.models[0].id == "small"
    assert found.missing == (
        "/version: ConnectError: refused",
        f"/metrics: more than {REPLY_BYTES_MAX} bytes",
    )
