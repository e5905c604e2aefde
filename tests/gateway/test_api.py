"""The gateway's own endpoints: who may see them, and what they say."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

CONF = (
    "upstream main {{ server {address}; model m; health_check off; }}"
    "server {{ listen 127.0.0.1:0; location / {{ proxy_pass http://main; }} "
    "location = /gone {{ return 410 'gone, $request_method'; }} "
    "location = /moved {{ return 301 https://x/$arg_to; }} }}"
    "server {{ listen unix:{folder}/admin.sock; location / {{ admin; }} "
    "location = /metrics {{ metrics; }} }}"
    "server {{ listen 127.0.0.1:0 default_server; server_name a; location / {{ admin; }} "
    "admin_token tok; }}"
)


@pytest.fixture
async def gw(gateway, engine, tmp_path: Path):  # type: ignore[no-untyped-def]
    one = await engine()
    text = CONF.format(address=one.address, folder=tmp_path)
    # Two servers on one port are one address: the one with a token gets a host of its own.
    return await gateway(text.replace("127.0.0.1:0 default_server", "127.0.0.2:0"))


@pytest.fixture
async def admin(gw, tmp_path: Path):  # type: ignore[no-untyped-def]
    transport = httpx.AsyncHTTPTransport(uds=f"{tmp_path}/admin.sock")
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        yield client


def token_url(gw) -> str:  # type: ignore[no-untyped-def]
    return str(gw.urls[2]).replace("127.0.0.1", "127.0.0.2")


async def test_health_and_ready_are_everywhere(gw, admin) -> None:  # type: ignore[no-untyped-def]
    for client in (gw.client, admin, gw.memory):
        assert (await client.get("/kvgate/health")).status_code == 200
        assert (await client.get("/kvgate/ready")).json() == {"ready": True}
    gw.app.life.draining = True
    assert (await gw.client.get("/kvgate/ready")).status_code == 503
    assert (await gw.client.get("/kvgate/health")).status_code == 200


async def test_status_on_the_unix_socket(gw, admin) -> None:  # type: ignore[no-untyped-def]
    await gw.client.post("/v1/completions", json={"model": "none"})
    status = (await admin.get("/kvgate/status")).json()
    assert status["ready"] and status["generation"] == 1 and status["pid"]
    made = status["upstreams"]["main"]["engines"][0]
    assert made["in_flight"] == 0 and made["state"] == "up"
    assert status["counters"]["refused"] == {"model_not_found": 1}


async def test_nothing_of_it_on_other_listeners(gw) -> None:  # type: ignore[no-untyped-def]
    for path in ("/kvgate/status", "/metrics", "/kvgate/", "/kvgate/%73tatus", "//kvgate/status"):
        reply = await gw.client.get(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found"), path


async def test_a_token_guards_it_on_tcp(gw) -> None:  # type: ignore[no-untyped-def]
    async with httpx.AsyncClient(base_url=token_url(gw), trust_env=False) as client:
        assert (await client.get("/kvgate/status")).status_code == 401
        wrong = {"authorization": "Bearer toK"}
        assert (await client.get("/kvgate/status", headers=wrong)).status_code == 401
        right = {"authorization": "Bearer tok"}
        assert (await client.get("/kvgate/status", headers=right)).status_code == 200


async def test_other_sites_pages_are_refused(gw, admin) -> None:  # type: ignore[no-untyped-def]
    for headers in (
        {"origin": "http://evil"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ):
        reply = await admin.get("/kvgate/status", headers=headers)
        assert reply.json()["error"]["code"] == "forbidden"
    assert (
        await admin.get("/kvgate/status", headers={"origin": "http://admin"})
    ).status_code == 200


async def test_metrics(gw, admin) -> None:  # type: ignore[no-untyped-def]
    await gw.client.post("/v1/completions", json={"model": "m"})
    reply = await admin.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    assert 'status="2xx"' in reply.text and "kvgate_engine_in_flight" in reply.text
    assert (await admin.post("/metrics")).status_code == 404


async def test_labels_stay_bounded(gw, admin) -> None:  # type: ignore[no-untyped-def]
    """SMG#1679: raw paths and model names as label values."""

    def samples(text: str) -> set[str]:
        return {line.rpartition(" ")[0] for line in text.splitlines() if line[0] != "#"}

    await gw.client.post("/v1/completions", json={"model": "x"})
    await gw.client.get("/nothing")
    await admin.get("/metrics")
    before = samples((await admin.get("/metrics")).text)
    for number in range(50):
        await gw.client.post(f"/v1/p{number}", json={"model": f"m{number}"})
        await gw.client.get(f"/q{number}")
    assert samples((await admin.get("/metrics")).text) - before == set()


async def test_wrong_methods_are_said_in_the_same_shape(gw, admin) -> None:  # type: ignore[no-untyped-def]
    for client, path in ((gw.client, "/kvgate/health"), (admin, "/kvgate/status")):
        reply = await client.post(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


async def test_returns(gw) -> None:  # type: ignore[no-untyped-def]
    reply = await gw.client.get("/gone")
    assert (reply.status_code, reply.text) == (410, "gone, GET")
    moved = await gw.client.get("/moved?to=b")
    assert (moved.status_code, moved.headers["location"]) == (301, "https://x/b")


async def test_everything_is_recorded_once(gw, admin) -> None:  # type: ignore[no-untyped-def]
    await gw.client.get("/kvgate/health")
    await gw.client.get("/gone")
    await gw.client.get("/nothing")
    await admin.get("/kvgate/status")
    await admin.get("/metrics")
    await gw.client.post("/v1/completions", json={"model": "m"})
    # Probes are not traffic: health leaves no line.
    assert [line["status"] for line in gw.lines()] == ["410", "404", "200", "200", "200"]
