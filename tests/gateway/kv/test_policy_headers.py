"""What a request may ask for by policy headers where prompts decide, and what is refused."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from harness.kv import LANES, chat, receipt, settled

ALLOW = (
    "policy_header X-KVGate-Policy allow=kv,least,hash,random,round_robin;"
    "policy_header X-KVGate-Session; policy_header X-KVGate-Overlap-Weight max=2;"
    "policy_header X-KVGate-TTFT-SLO min=100ms max=10s; policy_header X-KVGate-TPOT-SLO max=1s;"
    "policy_header X-KVGate-Cache-Scope; policy_header X-KVGate-Engine; trusted_from 127.0.0.0/8;"
)
URL = "/v1/chat/completions"


@pytest.fixture
async def gw(sim, serve) -> Any:  # type: ignore[no-untyped-def]
    engines = [sim() for _ in range(3)]
    made = await serve(engines, upstream="tokenizer remote;", location=ALLOW)
    made.engines = engines
    await settled(made, "engine")
    return made


@pytest.mark.parametrize(
    ("word", "how"),
    [("kv", "kv"), ("least", "least_conn"), ("random", "random"), ("round_robin", "round_robin")],
)
async def test_the_policy_decides(gw, word: str, how: str) -> None:  # type: ignore[no-untyped-def]
    reply = await gw.client.post(URL, json=chat("a b"), headers={"x-kvgate-policy": word})
    seen = receipt(reply)
    assert (reply.status_code, seen["policy"]) == (200, how)
    assert ("cost-ms" in seen) is (how == "kv")


async def test_a_hash_by_session_keeps_to_one_engine(gw) -> None:  # type: ignore[no-untyped-def]
    headers = {"x-kvgate-policy": "hash", "x-kvgate-session": "s1"}
    engines = set()
    for at in range(6):
        reply = await gw.client.post(URL, json=chat(f"text {at}"), headers=headers)
        assert receipt(reply)["policy"] == "hash"
        engines.add(receipt(reply)["engine"])
    assert len(engines) == 1


async def test_a_session_leans_to_one_engine_without_being_a_law(gw) -> None:  # type: ignore[no-untyped-def]
    homes = set()
    for at in range(5):
        headers = {"x-kvgate-session": f"s{at}"}
        body = chat(f"{at} the of and to in is that {at} " * 200)
        asked = {"request": body, "headers": headers}
        rows = (await gw.admin.post("/kvgate/explain", json=asked)).json()["engines"]
        home = [row["engine"] for row in rows if not row["terms_ms"]["session"]]
        seen = receipt(await gw.client.post(URL, json=body, headers=headers))
        assert (seen["policy"], [seen["engine"]]) == ("kv", home)
        homes.add(seen["engine"])
    assert len(homes) > 1


async def test_the_engine_that_is_asked_for_is_charged_like_any(gw) -> None:  # type: ignore[no-untyped-def]
    for engine in gw.engines:
        headers = {"x-kvgate-engine": engine.address}
        seen = receipt(await gw.client.post(URL, json=chat("a b"), headers=headers))
        assert (seen["engine"], seen["policy"]) == (engine.address, "pinned")
        assert int(seen["prompt-tokens"]) > 0 and float(seen["cost-ms"]) > 0


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("X-KVGate-Policy", "best", "one of kv, least, hash, random, round_robin"),
        ("X-KVGate-Overlap-Weight", "3", "at most 2"),
        ("X-KVGate-Overlap-Weight", "much", "a number"),
        ("X-KVGate-TTFT-SLO", "10ms", "at least 100ms"),
        ("X-KVGate-TTFT-SLO", "1h", "at most 10s"),
        ("X-KVGate-TPOT-SLO", "2s", "at most 1s"),
        ("X-KVGate-Session", "two words", "visible characters"),
        ("X-KVGate-Cache-Scope", "x" * 300, "visible characters"),
        ("X-KVGate-Engine", "10.9.8.7:1", "an engine of `sim`"),
    ],
)
async def test_what_is_out_of_bounds_is_refused_by_name(  # type: ignore[no-untyped-def]
    gw, name: str, value: str, expected: str
) -> None:
    reply = await gw.client.post(URL, json=chat("a"), headers={name: value})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, name)
    assert error["code"] == "policy_header_invalid"
    assert name in error["message"] and expected in error["message"]
    last = [engine.state()["last_request"] or {} for engine in gw.engines]
    assert all(request.get("target") != URL for request in last)


@pytest.mark.parametrize("name", ["X-KVGate-Overlap-Weight", "X-KVGate-TTFT-SLO"])
async def test_numbers_within_bounds_are_taken(gw, name: str) -> None:  # type: ignore[no-untyped-def]
    reply = await gw.client.post(URL, json=chat("a"), headers={name: "1"})
    assert (reply.status_code, receipt(reply)["policy"]) == (200, "kv")


def salt_of(scope: str, own: str) -> str:
    return hashlib.blake2b(f"{scope}\0{own}".encode(), digest_size=16).hexdigest()


@pytest.mark.parametrize("lane", LANES)
async def test_a_cache_scope_is_kept_by_the_engine_too(sim, serve, lane: str) -> None:  # type: ignore[no-untyped-def]
    one = sim()
    gw = await serve([one], upstream="tokenizer remote;", location=ALLOW, lane=lane)
    body = chat("the of and to " * 30)
    found = []
    for scope in ("a", "a", "b", ""):
        headers = {"x-kvgate-cache-scope": scope} if scope else {}
        reply = await gw.client.post(URL, json=body, headers=headers)
        found.append(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert found[0] == found[2] == found[3] == 0 and found[1] > 0


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"model":"sim","prompt":"a","max_tokens":1}',
         b'{"cache_salt":"%s","model":"sim","prompt":"a","max_tokens":1}'),
        (b'{"model":"sim", "cache_salt" : "own" ,"prompt":"a","max_tokens":1}',
         b'{"model":"sim", "cache_salt" : "%s" ,"prompt":"a","max_tokens":1}'),
    ],
)  # fmt: skip
async def test_the_salt_takes_the_bodys_own_into_account(  # type: ignore[no-untyped-def]
    sim, serve, body: bytes, sent: bytes
) -> None:
    one = sim()
    gw = await serve([one], upstream="tokenizer remote;", location=ALLOW)
    headers = {"x-kvgate-cache-scope": "team1", "content-type": "application/json"}
    reply = await gw.client.post("/v1/completions", content=body, headers=headers)
    assert reply.status_code == 200
    own = "own" if b"own" in body else ""
    seen = one.state()["last_request"]
    assert seen["body"].encode() == sent.replace(b"%s", salt_of("team1", own).encode())
    assert all(not name.startswith("x-kvgate") for name, _ in seen["headers"])


async def test_a_scope_is_read_where_bodies_pass_unread_else(sim, serve) -> None:  # type: ignore[no-untyped-def]
    one = sim()
    location = ALLOW + "trust_client on;"
    gw = await serve([one], upstream="tokenizer remote;", location=location)
    headers = {"x-kvgate-cache-scope": "a"}
    assert (await gw.client.post(URL, json=chat("a"), headers=headers)).status_code == 200
    assert f'"cache_salt":"{salt_of("a", "")}"' in one.state()["last_request"]["body"]


async def test_kv_where_prompts_do_not_decide_is_the_upstreams_own(sim, serve, gateway) -> None:  # type: ignore[no-untyped-def]
    one = sim()
    text = (
        f"upstream sim {{ server {one.address}; least_conn; health_check off; }}"
        f"server {{ listen 127.0.0.1:0; location / {{ proxy_pass http://sim; {ALLOW}"
        " expose_receipt on; } }"
    )
    gw = await gateway(text)
    reply = await gw.client.post(URL, json=chat("a"), headers={"x-kvgate-policy": "kv"})
    assert receipt(reply)["policy"] == "least_conn"
