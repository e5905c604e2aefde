"""Variables, error pages, access rules, limits and policy headers, through both lanes."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

LANES = ("express", "starlette")
PATH = "/v1/completions"


def lane_of(lane: str) -> str:
    return f"express {'on' if lane == 'express' else 'off'};"


def upstream(name: str, *engines, more: str = "") -> str:  # type: ignore[no-untyped-def]
    servers = " ".join(f"server {one.address};" for one in engines)
    return f"upstream {name} {{ {servers} {more} health_check off; }}"


def named(name: str):  # type: ignore[no-untyped-def]
    def answer(method: bytes, target: bytes, body: bytes) -> tuple[int, dict[str, str], bytes]:
        return 200, {"content-type": "application/json"}, json.dumps({"from": name}).encode()

    return answer


@pytest.mark.parametrize("lane", LANES)
async def test_variables_reach_headers_and_targets(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    one, two = await engine(named("one")), await engine(named("two"))
    gw = await gateway(
        upstream("a", one) + upstream("b", two) +
        "map $http_x_tier $up { default a; ~^g(?<rest>.*)$ b; lost gone; }"
        "map $up$rest $both { volatile; default <$up$rest>; }"
        "server { listen 127.0.0.1:0; set $team x; set $team ${team}y; " + lane_of(lane) +
        r" location ~ ^/v1/(?<kind>[a-z]+)$ { proxy_pass http://$up; set $kin $kind-$1;"
        " proxy_set_header x-seen $team/$kin/$both; }"
        " location /p/ { proxy_pass http://$up/v1/completions?t=$arg_t; } }"
    )  # fmt: skip
    seen = [
        (await gw.client.post(PATH, json={}, headers={"x-tier": t})).json() for t in ("", "gold")
    ]
    assert [s["from"] for s in seen] == ["one", "two"]
    assert one.clients()[0].headers[b"x-seen"] == b"xy/completions-completions/<a>"
    assert two.clients()[0].headers[b"x-seen"] == b"xy/completions-completions/<bold>"
    await gw.client.post("/p/anything?t=7", json={})
    assert one.clients()[-1].target == b"/v1/completions?t=7"
    lost = await gw.client.post(PATH, json={}, headers={"x-tier": "lost"})
    assert (lost.status_code, lost.json()["error"]["code"]) == (502, "upstream_unknown")
    assert "`gone`" in lost.json()["error"]["message"]


async def test_the_model_may_choose_by_a_map(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    one, two = await engine(named("one")), await engine(named("two"))
    gw = await gateway(
        upstream("a", one) + upstream("b", two) + "map $model $up { default a; ~^big b; }"
        "server { listen 127.0.0.1:0; location / { proxy_pass http://$up; } }"
    )
    for model, wanted in (("small", "one"), ("big-1", "two")):
        reply = await gw.client.post(PATH, json={"model": model})
        assert reply.json() == {"from": wanted}


@pytest.mark.parametrize("lane", LANES)
async def test_error_pages(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    one = await engine(named("spare"))
    gw = await gateway(
        "upstream dead { server 127.0.0.1:1; health_check off; }" + upstream("spare", one) +
        "server { listen 127.0.0.1:0; " + lane_of(lane) +
        " location / { proxy_pass http://dead; error_page 502 = @spare; }"
        " location /v1/kept/ { proxy_pass http://dead; error_page 502 @spare; }"
        " location /set/ { proxy_pass http://dead/v1/; error_page 502 =203 /page/x; }"
        " location /go/ { return 404; error_page 404 https://example.org/$uri; }"
        " location /text/ { return 410; error_page 410 /words; }"
        " location /twice/ { return 404; error_page 404 =200 /empty; }"
        " location = /empty { return 404; }"
        " location = /words { return 200 'for $uri'; }"
        " location /page/ { proxy_pass http://spare/v1/; }"
        " location @spare { proxy_pass http://spare; proxy_set_header x-was $request_uri; } }"
    )  # fmt: skip
    reply = await gw.client.post(PATH, content=b'{"a": 1}')
    assert (reply.status_code, reply.json()) == (200, {"from": "spare"})
    assert one.clients()[-1].body == b'{"a": 1}'
    reply = await gw.client.post("/v1/kept/completions", content=b"{}")
    assert (reply.status_code, reply.json()) == (502, {"from": "spare"})
    reply = await gw.client.post("/set/completions", content=b"{}")
    assert reply.status_code == 203
    asked = one.clients()[-1]
    assert (asked.method, asked.target, asked.body) == (b"GET", b"/v1/x", b"")
    reply = await gw.client.get("/go/a")
    assert (reply.status_code, reply.headers["location"]) == (302, "https://example.org//go/a")
    reply = await gw.client.get("/text/a")
    assert (reply.status_code, reply.text) == (410, "for /words")
    assert (await gw.client.get("/twice/a")).status_code == 404
    assert gw.app.pipeline.gatehouse.active == 0
    lines = gw.lines()
    assert len(lines) == 6 and lines[0]["error_code"] == "upstream_unreachable"


async def test_444_closes_without_a_word(gateway) -> None:  # type: ignore[no-untyped-def]
    gw = await gateway("server { listen 127.0.0.1:0; location / { return 444; } }")
    with pytest.raises(httpx.RemoteProtocolError):
        await gw.client.get("/")
    assert [line["status"] for line in gw.lines()] == ["444"]


async def test_a_condition_keeps_lines_out(gateway, tmp_path) -> None:  # type: ignore[no-untyped-def]
    gw = await gateway(
        "map $status $bad { ~^[45] 1; default 0; } server { listen 127.0.0.1:0;"
        f" access_log {tmp_path}/bad.log combined if=$bad;"
        " location / { return 200 x; } location /no { return 404 x; } }"
    )
    for path in ("/", "/no", "/"):
        await gw.client.get(path)
    for sink in gw.app.writer.sinks.values():
        sink.flush()
    gw.app.writer.close()
    assert len((tmp_path / "bad.log").read_text().splitlines()) == 1


@pytest.mark.parametrize("lane", LANES)
async def test_access_rules(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    one = await engine()
    gw = await gateway(
        upstream("a", one) + "server { listen 127.0.0.1:0; " + lane_of(lane) +
        " location / { proxy_pass http://a; deny 127.0.0.0/8; }"
        " location /in/ { proxy_pass http://a/v1/; allow 127.0.0.1; deny all; } }"
    )  # fmt: skip
    reply = await gw.client.post(PATH, json={})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "forbidden")
    assert (await gw.client.post("/in/completions", json={})).status_code == 200
    assert len(one.clients()) == 1


@pytest.mark.parametrize("lane", LANES)
async def test_requests_in_flight(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    """SMG#2240: a place is held until the reply has ended."""
    one = await engine()
    gw = await gateway(
        "limit_conn_zone $http_x_key zone=z:1m;" + upstream("a", one) +
        "server { listen 127.0.0.1:0; " + lane_of(lane) +
        " location / { proxy_pass http://a; limit_conn z 1; } }"
    )  # fmt: skip
    table = gw.app.memory.zones.conns["z"]
    assert table.acquire(b"k", 1)
    refused = await gw.client.post(PATH, json={}, headers={"x-key": "k"})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["code"] == "concurrency_limit_exceeded"
    assert (await gw.client.post(PATH, json={}, headers={"x-key": "other"})).status_code == 200
    assert (await gw.client.post(PATH, json={})).status_code == 200
    table.release(b"k")
    assert (await gw.client.post(PATH, json={}, headers={"x-key": "k"})).status_code == 200
    assert table.count(b"k") == table.count(b"other") == 0


@pytest.mark.parametrize("lane", LANES)
async def test_rates_refuse_and_delay(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    one = await engine()
    gw = await gateway(
        "limit_req_zone $http_x_key zone=slow:1m rate=1r/m;"
        " limit_req_zone $http_x_key zone=fast:1m rate=20r/s;"
        + upstream("a", one) + "server { listen 127.0.0.1:0; " + lane_of(lane) +
        " location / { proxy_pass http://a; limit_req zone=slow burst=1 nodelay;"
        " limit_req_status 503; }"
        " location /d/ { proxy_pass http://a/v1/; limit_req zone=fast burst=2; } }"
    )  # fmt: skip
    key = {"x-key": "k"}
    found = [await gw.client.post(PATH, json={}, headers=key) for _ in range(3)]
    assert [r.status_code for r in found] == [200, 200, 503]
    assert found[2].json()["error"]["code"] == "rate_limit_exceeded"
    assert found[2].headers["retry-after"] == "60"
    loop = asyncio.get_running_loop()
    start = loop.time()
    many = [gw.client.post("/d/completions", json={}, headers=key) for _ in range(4)]
    found = await asyncio.gather(*many)
    assert sorted(r.status_code for r in found) == [200, 200, 200, 429]
    assert loop.time() - start >= 0.09


async def test_a_client_that_leaves_does_not_wait(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    one = await engine()
    gw = await gateway(
        "limit_req_zone x zone=z:1m rate=1r/m;" + upstream("a", one) +
        "server { listen 127.0.0.1:0; location / { proxy_pass http://a;"
        " limit_req zone=z burst=9; } }"
    )  # fmt: skip
    await gw.client.post(PATH, json={})
    with pytest.raises(httpx.ReadTimeout):
        await gw.client.post(PATH, json={}, timeout=0.1)
    async with asyncio.timeout(5):
        while gw.app.pipeline.gatehouse.active:
            await asyncio.sleep(0.01)
    assert len(one.clients()) == 1
    assert [line["status"] for line in gw.lines()] == ["200", "499"]


@pytest.mark.parametrize("lane", LANES)
async def test_policy_headers(gateway, engine, lane: str) -> None:  # type: ignore[no-untyped-def]
    engines = [await engine(named(str(n))) for n in range(4)]
    gw = await gateway(
        upstream("a", *engines) + "server { listen 127.0.0.1:0; " + lane_of(lane) +
        " location / { proxy_pass http://a; expose_receipt on; trusted_from 127.0.0.1;"
        " policy_header X-KVGate-Session; policy_header X-KVGate-Engine;"
        " policy_header X-KVGate-Policy allow=least,hash;"
        " policy_header X-KVGate-Timeout max=10s;"
        " policy_header X-KVGate-TTFT-SLO max=10s;"
        " policy_header_alias x-session-id X-KVGate-Session; }"
        " location /shut/ { proxy_pass http://a/v1/; policy_header X-KVGate-Engine;"
        " trusted_from 10.0.0.0/8; } }"
    )  # fmt: skip

    async def ask(path: str = PATH, **headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await gw.client.post(path, json={}, headers=names)

    assert len({(await ask(x_kvgate_session="s1")).json()["from"] for _ in range(6)}) == 1
    same = await ask(x_session_id="s1")
    assert same.json() == (await ask(x_kvgate_session="s1")).json()
    assert same.headers["x-kvgate-policy"] == "hash"
    pinned = await ask(x_kvgate_engine=engines[2].address)
    assert pinned.json() == {"from": "2"} and pinned.headers["x-kvgate-policy"] == "pinned"
    for headers, name, bound in (
        ({"x_kvgate_policy": "kv"}, "X-KVGate-Policy", "least, hash"),
        ({"x_kvgate_timeout": "11s"}, "X-KVGate-Timeout", "at most 10s"),
        ({"x_kvgate_ttft_slo": "x"}, "X-KVGate-TTFT-SLO", ""),
        ({"x_kvgate_engine": "10.9.9.9:1"}, "X-KVGate-Engine", "an engine of `a`"),
    ):
        reply = await ask(**headers)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "policy_header_invalid")
        assert name in error["message"] and bound in error["message"] and error["param"] == name
    before = gw.app.pipeline.stats.count("stripped")
    assert (await ask("/shut/completions", x_kvgate_engine="10.9.9.9:1")).status_code == 200
    assert (await ask(x_kvgate_priority="1", x_kvgate_ttft_slo="1s")).status_code == 200
    assert gw.app.pipeline.stats.count("stripped") == before + 2
    for one in engines:
        assert not [n for a in one.clients() for n in a.headers if n.startswith(b"x-kvgate-")]


async def test_a_request_may_lower_its_timeout_and_its_retries(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    async def forever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    hung = await asyncio.start_server(forever, "127.0.0.1", 0)
    port = hung.sockets[0].getsockname()[1]
    bad = [await engine(lambda *_: (503, {}, b"busy")) for _ in range(3)]
    gw = await gateway(
        f"upstream h {{ server 127.0.0.1:{port}; health_check off; }}" + upstream("a", *bad) +
        "policy_header X-KVGate-Timeout; policy_header X-KVGate-Retries; server {"
        " listen 127.0.0.1:0;"
        " proxy_next_upstream error http_503 non_idempotent;"
        " location / { proxy_pass http://a; } location /h/ { proxy_pass http://h/v1/; } }"
    )  # fmt: skip
    reply = await gw.client.post("/h/completions", json={}, headers={"X-KVGate-Timeout": "100ms"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "upstream_timeout")
    await gw.client.post(PATH, json={}, headers={"X-KVGate-Retries": "1"})
    assert sum(len(one.clients()) for one in bad) == 2
    await gw.client.post(PATH, json={}, headers={"X-KVGate-Retries": "9"})
    assert sum(len(one.clients()) for one in bad) == 5
    hung.close()


async def test_nested_locations_are_found(gateway) -> None:  # type: ignore[no-untyped-def]
    gw = await gateway(
        "server { listen 127.0.0.1:0; location /a/ { location = /a/b { return 200 exact; }"
        r" location ~ \.txt$ { return 200 $uri; } return 200 outer; } }"
    )  # fmt: skip
    for path, text in (("/a/b", "exact"), ("/a/c.txt", "/a/c.txt"), ("/a/c", "outer")):
        assert (await gw.client.get(path)).text == text


async def test_what_no_location_takes_has_its_servers_error_page(gateway) -> None:  # type: ignore[no-untyped-def]
    gw = await gateway(
        "server { listen 127.0.0.1:0; server_name ~^(?<who>[a-z]+)[.]example$;"
        " error_page 404 =200 /w;"
        " location = /w { return 200 '$who $uri'; } }"
    )
    reply = await gw.client.get("/nothing", headers={"host": "ann.example"})
    assert (reply.status_code, reply.text) == (200, "ann /w")


async def test_repeated_headers_are_one_value(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    """`$http_*` joins them as nginx does, wherever it is read."""
    one = await engine()
    gw = await gateway(
        upstream("a", one) + "map $http_x_team $first { default no; \"a, b\" both; }"
        "log_format own '$http_x_team|$http_cookie|$first'; "
        "server { listen 127.0.0.1:0; access_log own.log own; location / { proxy_pass http://a;"
        " proxy_set_header x-seen $http_x_team/$first/$cookie_q/$proxy_add_x_forwarded_for; } }"
    )
    pairs = [("x-team", "a"), ("x-team", "b"), ("cookie", "p=1"), ("cookie", "q=2"),
             ("x-forwarded-for", "10.0.0.1"), ("x-forwarded-for", "10.0.0.2")]  # fmt: skip
    await gw.client.post(PATH, json={}, headers=pairs)
    assert one.clients()[0].headers[b"x-seen"] == b"a, b/both/2/10.0.0.1, 10.0.0.2, 127.0.0.1"
    gw.app.writer.close()
    assert (gw.folder / "own.log").read_text() == "a, b|p=1; q=2|both\n"
