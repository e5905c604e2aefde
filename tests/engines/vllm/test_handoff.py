"""What a prefill is asked and what it answers, for the shapes that vLLM's versions have."""

from __future__ import annotations

import json

import pytest

from engines.vllm import handoff
from native._core import scan

# Of 0.32 by pull and by push, and of versions before leases (a flat list, no request id).
PULL = (
    b'{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[5, 6, 7]], '
    b'"remote_engine_id": "b7c2", "remote_request_id": "cmpl-r-0-9a8b7c6d", '
    b'"remote_host": "127.0.0.1", "remote_port": 5610, "tp_size": 2, "dcp_size": 1, '
    b'"pp_size": 1, "remote_num_tokens": 41, "remote_blocks_expiry_time": null, '
    b'"transfer_mode": "pull", "remote_prefill_cached_tokens": 16}'
)
PUSH = PULL.replace(b'"pull"', b'"push"')
OLDER = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[5,6,7],'
    b'"remote_engine_id":"b7c2","remote_host":"127.0.0.1","remote_port":5610,"tp_size":2}'
)


@pytest.mark.parametrize("params", [PULL, PUSH, OLDER])
def test_parameters_pass_byte_for_byte(params: bytes) -> None:
    reply = b'{"id":"x","usage":{"prompt_tokens":41},"kv_transfer_params": %b , "z":1}' % params
    found = handoff.read(reply, 16, 24)
    assert found is not None and found.raw == params
    assert found.peer == handoff.Peer("b7c2", "127.0.0.1", 5610, 2)
    assert found.tokens == (-1 if params is OLDER else 41)
    # Newer decode engines tell what was cached by themselves; of older ones it is put right.
    assert found.cached_tokens == (16 if params is OLDER else -1)
    body = b' { "model":"m","a":1.0}'
    sent = handoff.decode_body(body, scan(body).insert_at, found.raw)
    assert sent == b' {"kv_transfer_params":%b, "model":"m","a":1.0}' % params


LIMITS = {
    b"/v1/completions": "max_tokens",
    b"/v1/chat/completions": "max_completion_tokens",
    b"/v1/responses": "max_output_tokens",
    b"/v1/messages": "max_tokens",
}


@pytest.mark.parametrize("path", LIMITS)
def test_a_prefill_is_one_token_in_one_piece(path: bytes) -> None:
    body = {"model": "m", "max_tokens": 9, "max_completion_tokens": 8, "max_output_tokens": 7,
            "stream": True, "stream_options": {"include_usage": True}, "min_tokens": 3, "n": 1,
            "logprobs": True, "top_logprobs": 2, "store": True, "include": ["x"],
            "messages": [], "tools": [], "tool_choice": "required", "temperature": 0.5,
            "reasoning_effort": "low", "chat_template_kwargs": {"a": 1}}  # fmt: skip
    got = json.loads(handoff.prefill_body(path, json.dumps(body).encode()))
    kept = ("model", "messages", "tools", "tool_choice", "temperature", "reasoning_effort",
            "chat_template_kwargs")  # fmt: skip
    want = {name: body[name] for name in kept} | {LIMITS[path]: 1} | {
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}
    }
    if path == b"/v1/responses":
        want["store"] = False
    assert got == want


@pytest.mark.parametrize(
    ("more", "why"),
    [({}, ""), ({"n": 2}, "choices"), ({"best_of": 3}, "choices"), ({"echo": True}, "field"),
     ({"echo": False}, ""), ({"prompt_logprobs": 0}, "field"), ({"truncation": "auto"}, "field"),
     ({"truncation": "disabled"}, ""), ({"prompt": ["a"]}, "prompts"), ({"prompt": [1, 2]}, ""),
     ({"prompt": [[1], [2]]}, "prompts"), ({"background": True}, "field")],
)  # fmt: skip
def test_why_one_engine_answers_alone(more: dict[str, object], why: str) -> None:
    body = json.dumps({"model": "m", "prompt": "x", **more}).encode()
    assert handoff.why_alone(b"/v1/completions", body, scan(body)) == why
    assert handoff.why_alone(b"/v1/embeddings", body, scan(body)) == "endpoint"


def test_both_legs_of_a_pushed_response_have_its_name_in_the_body() -> None:
    path, body = b"/v1/responses", b'{"input":"x"}'
    assert handoff.why_alone(path, body, scan(body), push=True) == ""
    name = handoff.naming(path, "7")
    prefill = json.loads(handoff.prefill_body(path, body, name))
    decode = json.loads(handoff.decode_body(body, 1, b"{}", name))
    assert prefill["request_id"] == decode["request_id"] == "resp_7"
    assert handoff.naming(b"/v1/completions", "7") == b""
    own = b'{"input":"x","request_id":"mine"}'
    assert handoff.why_alone(path, own, scan(own), push=True) == "field"
    assert handoff.why_alone(path, own, scan(own)) == ""
