"""Requests through both lanes and through another ASGI server, with engines of our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

Start = Callable[..., Awaitable[object]]
LANES = ("express", "starlette", "asgi")


def conf(upstream: str, location: str = "", lane: str = "express") -> str:
    express = "on" if lane == "express" else "off"
    return (
        f"upstream main {{ {upstream} health_check off; }} server {{ listen 127.0.0.1:0; "
        f"location / {{ proxy_pass http://main; express {express}; {location} }} }}"
    )


def named(name: str):  # type: ignore[no-untyped-def]
    """An engine that serves one model, with a card that has fields of its own."""

    def answer(method: bytes, target: bytes, body: bytes) -> tuple[int, dict[str, str], bytes]:
        card = {"id": name, "object": "model", "max_model_len": 64, "parent": None}
        if target == b"/v1/models":
            content: object = {"object": "list", "data": [card]}
        else:
            content = {"id": "resp_" + name, "model": name}
        return 200, {"content-type": "application/json"}, json.dumps(content).encode()

    return answer


@pytest.mark.parametrize("lane", LANES)
async def test_a_request_and_its_record(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    one = await engine(named("m1"))
    gw = await gateway(conf(f"server {one.address}; model m1;", lane=lane))
    client = gw.memory if lane == "asgi" else gw.client
    body = b'{"model":"m1", "x":1.0,"kv_transfer_params":{"do_remote_prefill":true}}'
    headers = {
        "x-request-id": "mine",
        "x-data-parallel-rank": "3",
        "X-KVGate-Engine": "e",
        "x-foo": "1",
    }
    reply = await client.post("/v1/chat/completions?a=1", content=body, headers=headers)
    assert reply.status_code == 200 and reply.json() == {"id": "resp_m1", "model": "m1"}
    assert reply.headers["x-request-id"] == "mine"
    seen = one.clients()[0]
    assert seen.target == b"/v1/chat/completions?a=1" and seen.body == b'{"model":"m1", "x":1.0}'
    assert seen.headers[b"host"] == one.address.encode() and seen.headers[b"x-foo"] == b"1"
    assert b"x-data-parallel-rank" not in seen.headers and b"x-kvgate-engine" not in seen.headers
    assert len(seen.headers[b"x-request-id"]) == 32
    shown = "express" if lane == "asgi" else lane
    line = {"status": "200", "lane": shown, "termination": "--", "error_code": "", "model": "m1"}
    if lane == "asgi":
        line["lane"] = "starlette"
    assert gw.lines() == [line]


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/sleep", b"{}", 404, "not_found"),
        ("POST", "/v1/load_lora_adapter", b"{}", 404, "not_found"),
        ("POST", "/%73leep", b"{}", 404, "not_found"),
        ("POST", "/v1/chat/completions", b'{"model":"x"}', 404, "model_not_found"),
        ("POST", "/v1/chat/completions", b'{"model":', 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"[]", 400, "invalid_json"),
        ("TRACE", "/v1/models", b"", 405, "method_not_allowed"),
        ("POST", "/v1/completions", b"x" * 2000, 413, "body_too_large"),
        ("GET", "/v1/models/none", b"", 404, "model_not_found"),
    ],
)
async def test_bad_input_is_a_clear_4xx(  # type: ignore[no-untyped-def]
    gateway, engine, lane: str, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    one = await engine(named("m1"))
    gw = await gateway(conf(f"server {one.address}; model m1;", "client_max_body_size 1k;", lane))
    client = gw.memory if lane == "asgi" else gw.client
    headers = {"content-type": "application/json"}
    reply = await client.request(method, path, content=body, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert reply.headers["x-request-id"]
    assert not one.clients()
    assert [line["error_code"] for line in gw.lines()] == [code]


@pytest.mark.parametrize("lane", LANES)
async def test_alias_there_and_back(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    one = await engine(named("org/m1"))
    upstream = f"server {one.address}; model org/m1 alias=small;"
    gw = await gateway(conf(upstream, lane=lane))
    client = gw.memory if lane == "asgi" else gw.client
    reply = await client.post("/v1/completions", content=b'{"prompt":"","model":"small"}')
    assert one.clients()[0].body == b'{"prompt":"","model":"org/m1"}'
    assert reply.json() == {"id": "resp_org/m1", "model": "small"}
    cards = {card["id"]: card for card in (await client.get("/v1/models")).json()["data"]}
    assert set(cards) == {"org/m1", "small"}
    assert cards["small"]["root"] == "org/m1" and cards["small"]["max_model_len"] == 64
    assert (await client.get("/v1/models/org/m1")).json()["max_model_len"] == 64


@pytest.mark.parametrize("lane", LANES)
async def test_the_model_chooses_the_upstream(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    one, two = await engine(named("a")), await engine(named("b"))
    gw = await gateway(
        f"upstream u {{ server {one.address}; model a; health_check off; }}"
        f"upstream v {{ server {two.address}; model b; health_check off; }}"
        "server { listen 127.0.0.1:0; location / { proxy_pass http://$upstream_by_model; "
        f"express {'on' if lane == 'express' else 'off'}; }} }}"
    )
    client = gw.memory if lane == "asgi" else gw.client
    for model in ("a", "b", "b"):
        reply = await client.post("/v1/completions", json={"model": model})
        assert reply.json()["model"] == model
    assert (len(one.clients()), len(two.clients())) == (1, 2)
    assert (await client.post("/v1/completions", json={"model": "c"})).status_code == 404
    assert (await client.post("/v1/completions", json={})).json()["error"][
        "code"
    ] == "model_required"
    listed = (await client.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == ["a", "b"]


@pytest.mark.parametrize("lane", LANES)
async def test_stored_responses_go_to_their_engine(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    engines = [await engine(named(f"m{n}")) for n in range(4)]
    gw = await gateway(conf(" ".join(f"server {e.address};" for e in engines), lane=lane))
    client = gw.memory if lane == "asgi" else gw.client
    made = (await client.post("/v1/responses", json={"model": "m"})).json()["id"]
    holder = next(e for e in engines if e.clients())
    for _ in range(3):
        await client.post("/v1/responses", json={"previous_response_id": made})
        await client.get(f"/v1/responses/{made}")
        await client.post(f"/v1/responses/{made}/cancel")
    assert len(holder.clients()) == 10
    assert (await client.get("/v1/responses/resp_unknown")).status_code == 200


async def test_large_bodies_are_scanned_off_the_loop(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    one = await engine(named("m1"))
    gw = await gateway(conf(f"server {one.address}; model m1;"))
    big = b'{"model":"m1","kv_transfer_params":1,"x":"' + b"y" * (3 << 20) + b'"}'
    reply = await gw.client.post("/v1/completions", content=big)
    assert reply.status_code == 200
    assert one.clients()[0].body == big.replace(b'"kv_transfer_params":1,', b"")
    assert gw.lines()[0]["lane"] == "starlette"


@pytest.mark.parametrize("lane", LANES)
async def test_the_next_engine_on_a_listed_status(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    bad = await engine(lambda *_: (503, {}, b"busy"))
    good = await engine(named("m1"))
    location = "proxy_next_upstream error http_503 non_idempotent; expose_receipt on;"
    gw = await gateway(conf(f"server {bad.address}; server {good.address};", location, lane))
    client = gw.memory if lane == "asgi" else gw.client
    replies = [await client.post("/v1/completions", json={}) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 200]
    assert replies[0].headers["x-kvgate-attempts"] == "2"
    assert gw.app.pipeline.stats.counts("retry")["status"] == 1
    assert all(
        gw.app.table.ledger.in_flight(e.slot) == 0 for e in gw.app.table.groups["main"].engines
    )


@pytest.mark.parametrize("lane", LANES)
async def test_added_headers_follow_the_status(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    status = 200
    one = await engine(lambda *_: (status, {"x-up": "1"}, b"{}"))
    location = (
        "add_header x-ok 1; add_header x-always 1 always; add_header x-echo $upstream_http_x_up;"
    )
    gw = await gateway(conf(f"server {one.address};", location, lane))
    client = gw.memory if lane == "asgi" else gw.client
    good = await client.post("/v1/completions", json={})
    assert (good.headers["x-ok"], good.headers["x-always"], good.headers["x-echo"]) == (
        "1",
        "1",
        "1",
    )
    status = 400
    bad = await client.post("/v1/completions", json={})
    assert bad.status_code == 400 and "x-ok" not in bad.headers and bad.headers["x-always"] == "1"


async def test_places_are_given_back(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    """PS#1001, SMG#2064: whatever the end, the worker's places and the ledger come back to zero."""
    one = await engine(named("m1"))
    gw = await gateway(conf(f"server {one.address}; model m1;"))
    paths = ["/v1/completions", "/nothing", "/v1/models", "/kvgate/health"]
    await asyncio.gather(*(gw.client.post(path, content=b'{"model":"m1"}') for path in paths * 5))
    assert gw.app.pipeline.gatehouse.active == 0
    assert len(gw.lines()) == 15  # health is not recorded


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", "audio/w", "a/x+json"])
async def test_no_type_hides_what_a_stranger_must_not_set(gateway, engine, lane, kind) -> None:  # type: ignore[no-untyped-def]
    """A body is read whatever it calls itself, in one piece or many; one that is no JSON passes."""
    one = await engine(named("m1"))
    gw = await gateway(conf(f"server {one.address};", lane=lane))
    client = gw.memory if lane == "asgi" else gw.client
    fields = b'"kv_transfer_params":{"do_remote_prefill":true}'

    async def slowly(body: bytes):  # type: ignore[no-untyped-def]
        for at in range(0, len(body), 30):
            yield body[at : at + 30]

    for blank in (b"", b"\r\n\t " * 40):
        body = blank + b'{"model":"m1",' + fields + b"}"
        for content in (body, slowly(body)):
            await client.post("/v1/completions", content=content, headers={"content-type": kind})
            assert one.clients()[-1].body == blank + b'{"model":"m1"}'
    if "json" not in kind:
        noise = b"{" + fields + b"\xff\x00"
        await client.post("/v1/completions", content=noise, headers={"content-type": kind})
        assert one.clients()[-1].body == noise


@pytest.mark.parametrize("lane", LANES)
async def test_a_form_names_its_model_too(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    one = await engine(named("org/whisper"))
    gw = await gateway(conf(f"server {one.address}; model org/whisper alias=w;", lane=lane))
    client = gw.memory if lane == "asgi" else gw.client
    files = {"file": ("a.wav", b"\x00\r\n" * 99)}
    reply = await client.post("/v1/audio/transcriptions", data={"model": "w"}, files=files)
    assert reply.status_code == 200
    assert b"\r\n\r\norg/whisper\r\n" in one.clients()[0].body
    reply = await client.post("/v1/audio/transcriptions", data={"model": "x"}, files=files)
    assert reply.json()["error"]["code"] == "model_not_found"


async def test_errors_of_messages_suit_anthropics_clients(gateway) -> None:  # type: ignore[no-untyped-def]
    gw = await gateway(conf("server 127.0.0.1:1; model m;"))
    reply = (await gw.client.post("/v1/messages", json={"model": "x"})).json()
    assert reply["type"] == "error" and reply["error"]["code"] == "model_not_found"


async def test_nothing_of_a_request_stays_behind(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    """LL#12685: memory grew with requests. Bodies are freed without the help of the collector."""
    import gc

    from gateway.context import Context

    one = await engine(named("m1"))
    gw = await gateway(conf(f"server {one.address}; model m1;"))
    gc.collect()
    gc.disable()
    try:
        for path in ("/v1/completions", "/nothing", "/v1/completions"):
            for _ in range(20):
                await gw.client.post(path, json={"model": "m1", "x": "y" * 1000})
        left = [thing for thing in gc.get_objects() if isinstance(thing, Context)]
        assert len(left) <= 2
    finally:
        gc.enable()


async def test_a_gateway_that_has_stopped_leaves_the_collector_as_it_was(gateway) -> None:  # type: ignore[no-untyped-def]
    import gc

    before = gc.get_threshold()
    gw = await gateway(conf("server 127.0.0.1:1;"))
    assert gc.get_freeze_count() > 0 and gc.get_threshold() != before
    await gw.app.stop()
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == before
