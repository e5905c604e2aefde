"""Bodies are forwarded byte for byte; what must change is cut out or put in at its place.

R#161, EA#1863, EA#827, AX#2364.
"""

from __future__ import annotations

import json

import pytest
from harness import scripts
from harness.client import chunked, prompt, request_bytes
from harness.shapes import error_of
from harness.stage import Conf, Play, Stage

ODD_JSON: dict[str, bytes] = {
    "key_order": b'{"z":1,"model":"m1","a":2,"prompt":"x"}',
    "spaces": b'\t{ "model" :\r\n "m1" , "prompt":"x" }\n\n',
    "numbers": b'{"model":"m1","temperature":1.0,"top_p":1e-1,"seed":-0,"max_tokens":1E+2}',
    "big_numbers": b'{"model":"m1","seed":123456789012345678901234567890,"x":1e400,"y":0.1000}',
    "duplicate_keys": b'{"model":"m1","stop":"a","stop":"b","user":"u","user":"u"}',
    "escapes": b'{"model":"m1","prompt":"\\u0041\\/\\ud83d\\ude42\\u00e9 \\u2028"}',
    "lone_surrogate": b'{"model":"m1","prompt":"\\ud83d"}',
    "raw_utf8": '{"model":"m1","prompt":"日本語🙂\u2028"}'.encode(),
    "unknown_fields": b'{"model":"m1","return_token_ids":true,"vllm_xargs":{"a":[1,{"b":null}]}}',
    "case": b'{"model":"m1","Model":"M2","MODEL":"M3","Stream":true}',
    "nested_model": b'{"model":"m1","x":{"model":"other","stream":true},"y":[{"model":"z"}]}',
    "empty_things": b'{"model":"m1","":"","a":{},"b":[],"c":null,"d":""}',
    "escaped_key": b'{"\\u006dodel":"m1","prompt":"x"}',
    "deep": b'{"model":"m1","x":' + b"[" * 100 + b"]" * 100 + b"}",
}


@pytest.mark.parametrize("name", sorted(ODD_JSON))
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_json_reaches_the_engine_byte_identical(
    stage: Stage, lane: str, name: str, framing: str
) -> None:
    """R#161, EA#1863: bodies went through a parser and came out with fields lost or renamed."""
    body = ODD_JSON[name]
    if framing == "length":
        assert stage.ask(lane, body).status == 200
    else:
        client = stage.client(lane)
        head = request_bytes(
            headers=(("Transfer-Encoding", "chunked"), ("Content-Type", "application/json")),
            framed=False,
        )
        client.send(head + chunked(*[body[at : at + 9] for at in range(0, len(body), 9)]))
        assert client.reply().status == 200
    assert stage.engine.seen[0].body == body


BAD_JSON: dict[str, bytes] = {
    "cut": b'{"model":"m1","prompt":"x"',
    "garbage": b"not json",
    "array": b'[{"model":"m1"}]',
    "string": b'"model"',
    "null": b"null",
    "trailing": b'{"model":"m1"} {"model":"m1"}',
    "trailing_comma": b'{"model":"m1",}',
    "single_quotes": b"{'model':'m1'}",
    "nan_word": b'{"model":"m1","x":nan}',
    "control_in_string": b'{"model":"m\x011"}',
    "bad_escape": b'{"model":"m1","x":"\\q"}',
    "bad_utf8": b'{"model":"m1","x":"\xff"}',
    "too_deep": b'{"model":"m1","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "bom": b'\xef\xbb\xbf{"model":"m1"}',
}


@pytest.mark.parametrize("name", sorted(BAD_JSON))
def test_json_that_cannot_be_read_is_a_400(stage: Stage, lane: str, name: str) -> None:
    """Bad input gets a clear 4xx, never a 500, never a lost connection; the connection goes on."""
    client = stage.client(lane)
    reply = client.ask(BAD_JSON[name])
    error = error_of(reply, 400)
    assert "byte" in str(error["message"]) or error["param"] or error["code"], error
    assert not stage.engine.seen
    assert client.ask(prompt()).status == 200


@pytest.mark.parametrize("body", [b"", b'{"model":7}'], ids=["empty", "model_number"])
def test_what_an_engine_can_refuse_itself_reaches_it_unchanged(
    stage: Stage, lane: str, body: bytes
) -> None:
    """Nothing that routing needs is missing here: the engine's own 4xx is the better message."""
    reply = stage.ask(lane, body)
    if reply.status == 200:
        assert stage.engine.seen[0].body == body
    else:
        error_of(reply, 400)


FORBIDDEN: dict[str, tuple[bytes, dict[str, object]]] = {
    "kv": (b'{"model":"m1","kv_transfer_params":{"do_remote_decode":true},"a":1}', {"a": 1}),
    "ec": (b'{"ec_transfer_params":{"x":[1,{"y":"}"}]},"model":"m1"}', {}),
    "last": (b'{"model":"m1","kv_transfer_params":null}', {}),
    "only_two": (b'{"kv_transfer_params":1,"ec_transfer_params":2,"model":"m1"}', {}),
    "twice": (b'{"kv_transfer_params":{"a":1},"model":"m1","kv_transfer_params":{"b":2}}', {}),
    "escaped": (b'{"kv_tr\\u0061nsfer_params":{"a":1},"model":"m1"}', {}),
    "escaped_all": (
        b'{"'
        + b"".join(b"\\u%04x" % byte for byte in b"kv_transfer_params")
        + b'":1,"model":"m1"}',
        {},
    ),
    "upper_hex": (b'{"kv\\u005Ftransfer\\u005fparams":{"a":1},"model":"m1"}', {}),
    "xargs": (
        b'{"model":"m1","vllm_xargs":{"kv_transfer_params":"{}","k":1,"ec_transfer_params":"",'
        b'"kv_cache_report_mode":"full"}}',
        {"vllm_xargs": {"k": 1}},
    ),
    "xargs_twice": (
        b'{"vllm_xargs":{"kv_cache_report_mode":1},"model":"m1",'
        b'"vllm_xargs":{"ec_transfer_params":1}}',
        {"vllm_xargs": {}},
    ),
    "xargs_escaped_key": (
        b'{"model":"m1","\\u0076llm_xargs":{"\\u006bv_transfer_params":1,"z":2}}',
        {"vllm_xargs": {"z": 2}},
    ),
    "spaces": (b'{ "kv_transfer_params" : { } , "model" : "m1" , "b" : 2 }', {"b": 2}),
    "in_text": (
        b'{"model":"m1","prompt":"\\"kv_transfer_params\\":1"}',
        {"prompt": '"kv_transfer_params":1'},
    ),
    "nested_elsewhere": (
        b'{"model":"m1","metadata":{"kv_transfer_params":1}}',
        {"metadata": {"kv_transfer_params": 1}},
    ),
}


@pytest.mark.parametrize("name", sorted(FORBIDDEN))
def test_fields_a_stranger_must_not_set_are_removed(stage: Stage, lane: str, name: str) -> None:
    """Each can kill, mislead or jump the queue of a stock engine; nothing else may change."""
    body, left = FORBIDDEN[name]
    assert stage.ask(lane, body).status == 200
    sent = stage.engine.seen[0].body
    pairs: list[tuple[str, object]] = json.loads(sent, object_pairs_hook=list)
    keys = [key for key, _ in pairs]
    assert "kv_transfer_params" not in keys and "ec_transfer_params" not in keys, sent
    assert json.loads(sent) == {"model": "m1", **left}, sent


@pytest.mark.parametrize(
    "name", ["X-data-parallel-rank", "X-Vllm-Priority", "x-DATA-parallel-RANK"]
)
def test_headers_a_stranger_must_not_set_are_removed(stage: Stage, lane: str, name: str) -> None:
    assert stage.ask(lane, prompt(), headers=((name, "1"), ("X-Ok", "1"))).status == 200
    assert stage.engine.seen[0].header(name) is None
    assert stage.engine.seen[0].header("x-ok") == "1"


TRUSTING = Conf(location="trust_client on;")


def test_trusted_clients_keep_their_fields(play: Play, lane: str) -> None:
    stage = play(TRUSTING)
    body = FORBIDDEN["xargs"][0]
    headers = (("X-data-parallel-rank", "1"),)
    assert stage.ask(lane, body, headers=headers).status == 200
    assert stage.engine.seen[0].body == body
    assert stage.engine.seen[0].header("x-data-parallel-rank") == "1"


CLOSED = [
    "/sleep", "/wake_up", "/reset_prefix_cache", "/collective_rpc", "/metrics", "/docs",
    "/openapi.json", "/server_info", "/start_profile", "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter", "//sleep", "/v1/../sleep", "/./sleep", "/%73leep", "/sleep/",
    "/sleep?x=1", "/v1//load_lora_adapter", "/v1/%6coad_lora_adapter", "/v1/x/../load_lora_adapter",
    "/v1/.%2e/sleep", "/v1/%2e%2e/sleep", "/v1/load_lora_adapter/", "/%2fsleep", "/sleep%2f",
    "/sleep;x", "/sleep#x",
]  # fmt: skip


@pytest.mark.parametrize("target", CLOSED)
def test_engine_control_paths_are_closed(stage: Stage, lane: str, target: str) -> None:
    """However the path is spelt: what an engine would read as a control path is a 404 here."""
    reply = stage.ask(lane, b"{}", target=target)
    assert reply.status in (400, 404), reply.status
    error_of(reply, reply.status)
    assert not stage.engine.seen


OPEN = Conf(location="engine_admin on;")


def test_engine_control_paths_open_where_the_operator_says_so(play: Play, lane: str) -> None:
    stage = play(OPEN)
    assert stage.ask(lane, b"", target="/reset_prefix_cache").status == 200
    assert stage.engine.seen[0].target == "/reset_prefix_cache"


@pytest.mark.parametrize("mib", [1, 20, 63])
def test_large_json_body_passes(stage: Stage, lane: str, mib: int) -> None:
    """EA#827, AX#2364: caps at 32 KB, 2 MB, 4 MB; images in base64 are 20 MB and more."""
    body = prompt(image="A" * (mib << 20))
    reply = stage.ask(lane, body)
    assert reply.status == 200, reply.body[:300]
    assert stage.engine.seen[0].body == body


def test_large_reply_passes(stage: Stage, lane: str) -> None:
    """EA#827: a 50 MB embedding reply."""
    body = b'{"data":[' + b"0.123456," * (50 * 1024 * 1024 // 9) + b"0]}"
    stage.engine.script = scripts.says(body)
    assert stage.ask(lane, body=prompt(), target="/v1/embeddings").body == body


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_multipart_upload_passes_byte_identical(stage: Stage, lane: str, framing: str) -> None:
    """Bodies that need no reading are passed on as they come, binary and all."""
    body = bytes(range(256)) * 4096 * 8
    stage.engine.script = scripts.reads_all
    client = stage.client(lane)
    kind = ("Content-Type", "multipart/form-data; boundary=x")
    target = "/v1/audio/transcriptions"
    if framing == "length":
        client.send(request_bytes(body, target=target, headers=(kind,)))
    else:
        head = request_bytes(
            target=target, headers=(kind, ("Transfer-Encoding", "chunked")), framed=False
        )
        client.send(head + chunked(*[body[at : at + 70_001] for at in range(0, len(body), 70_001)]))
    assert client.reply().status == 200
    assert stage.engine.seen[0].body == body
