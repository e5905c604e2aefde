"""The dashboard's endpoints: files, headers, who may watch, and how a stream ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.dashboard import watch
from gateway.dashboard.pages import POLICY

LANES = ("express", "starlette")
CONF = (
    "upstream main {{ server {address}; model m; health_check off; }}"
    "server {{ listen 127.0.0.1:0; express {express}; location / {{ proxy_pass http://main; }} }}"
    "server {{ listen unix:{folder}/admin.sock; express {express}; location / {{ admin; }}"
    " location = /metrics {{ metrics; }} }}"
    "server {{ listen 127.0.0.2:0; express {express}; location / {{ admin; }} admin_token tok; }}"
)


@pytest.fixture(params=LANES)
async def gw(request, gateway, engine, tmp_path: Path):  # type: ignore[no-untyped-def]
    one = await engine()
    express = "on" if request.param == "express" else "off"
    text = CONF.format(address=one.address, folder=tmp_path, express=express)
    return await gateway(text)


@pytest.fixture
async def admin(gw, tmp_path: Path):  # type: ignore[no-untyped-def]
    transport = httpx.AsyncHTTPTransport(uds=f"{tmp_path}/admin.sock")
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        yield client


async def snapshots(lines: Any, count: int) -> list[dict[str, Any]]:
    """The next ones of an open stream."""
    found: list[dict[str, Any]] = []
    async for line in lines:
        if line.startswith("data: "):
            found.append(json.loads(line[6:]))
            if len(found) == count:
                break
    return found


async def until(holds: Any, what: str) -> None:
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never: {what}")


async def open_dashboards(admin: httpx.AsyncClient) -> int:
    text = (await admin.get("/metrics")).text
    line = next(one for one in text.splitlines() if one.startswith("kvgate_dashboards_open "))
    return int(float(line.split()[1]))


async def test_the_page_and_its_files(gw, admin) -> None:  # type: ignore[no-untyped-def]
    page = await admin.get("/kvgate/")
    assert page.status_code == 200 and page.text.startswith("<!doctype html>")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    names = {part.split('"')[0] for part in page.text.split('="page/')[1:]}
    for name in ("engines.js", "feed.js", "figures.js", "history.js", "plots.js", "tables.js"):
        names.add(name)
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert names >= {"icon.svg", "uplot.css", "uplot.js", "dashboard.css", "dashboard.js"}
    for name in names:
        reply = await admin.get(f"/kvgate/page/{name}")
        assert reply.status_code == 200 and len(reply.content) > 100, name
        assert reply.headers["content-type"].startswith(kinds[name.rpartition(".")[2]]), name
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY and "http" not in POLICY


async def test_no_page_names_another_origin(gw, admin) -> None:  # type: ignore[no-untyped-def]
    for name in ("", "page/dashboard.js", "page/dashboard.css", "page/feed.js", "page/plots.js"):
        text = (await admin.get(f"/kvgate/{name}")).text
        assert "http://" not in text and "https://" not in text and "//cdn" not in text, name
    page = (await admin.get("/kvgate/")).text
    assert "<style" not in page and " style=" not in page and "onclick" not in page
    assert "<script>" not in page


async def test_other_names_are_no_files(gw, admin) -> None:  # type: ignore[no-untyped-def]
    for path in ("/kvgate/page/x.js", "/kvgate/page/..%2f__init__.py", "/kvgate/page/", "/kvgate"):
        assert (await admin.get(path)).status_code == 404, path
    assert (await admin.post("/kvgate/")).status_code == 404


async def test_it_is_nowhere_else(gw) -> None:  # type: ignore[no-untyped-def]
    for path in ("/kvgate/", "/kvgate/page/dashboard.js", "/kvgate/live"):
        assert (await gw.client.get(path)).status_code == 404


async def test_other_sites_pages_get_nothing(gw, admin) -> None:  # type: ignore[no-untyped-def]
    for headers in ({"origin": "http://evil"}, {"sec-fetch-site": "cross-site"}):
        for path in ("/kvgate/", "/kvgate/page/dashboard.js", "/kvgate/live"):
            assert (await admin.get(path, headers=headers)).status_code == 403


async def test_the_stream_needs_the_token_and_the_page_does_not(gw) -> None:  # type: ignore[no-untyped-def]
    url = str(gw.urls[2]).replace("127.0.0.1", "127.0.0.2")
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        assert (await client.get("/kvgate/")).status_code == 200
        assert (await client.get("/kvgate/live")).status_code == 401
        wrong = {"authorization": "Bearer no"}
        assert (await client.get("/kvgate/live", headers=wrong)).status_code == 401
        right = {"authorization": "Bearer tok"}
        async with client.stream("GET", "/kvgate/live", headers=right) as reply:
            assert reply.status_code == 200
            assert (await snapshots(reply.aiter_lines(), 1))[0]["version"] == 1


async def test_snapshots_come_and_count(gw, admin) -> None:  # type: ignore[no-untyped-def]
    async with admin.stream("GET", "/kvgate/live") as reply:
        assert reply.headers["content-type"] == "text/event-stream"
        lines = reply.aiter_lines()
        first = (await snapshots(lines, 1))[0]
        assert first["upstreams"]["main"]["figures"]["completed_per_s"] is None
        for _ in range(5):
            await gw.client.post("/v1/completions", json={"model": "m"})
        second = (await snapshots(lines, 1))[0]
        while second["upstreams"]["main"]["figures"]["completed_per_s"] == 0:
            second = (await snapshots(lines, 1))[0]
        made = second["upstreams"]["main"]
        assert made["figures"]["completed_per_s"] == pytest.approx(5 / second["over_s"], rel=0.01)
        assert made["engines"][0]["load"]["dispatched"] == 5
        assert second["decisions"][0]["engine"] == made["engines"][0]["address"]
        assert second["at"] > first["at"] and second["gateway"]["pid"]


async def test_head_does_not_hang(gw, admin) -> None:  # type: ignore[no-untyped-def]
    reply = await admin.head("/kvgate/live")
    assert reply.status_code == 200 and not reply.content
    assert await open_dashboards(admin) == 0


async def test_a_browser_that_leaves_is_let_go(gw, admin) -> None:  # type: ignore[no-untyped-def]
    shown = gw.app.memory.stats
    async with admin.stream("GET", "/kvgate/live") as reply:
        lines = reply.aiter_lines()
        await snapshots(lines, 1)
        assert await open_dashboards(admin) == 1
    await until(lambda: shown.count("dashboards") == 0, "the stream is closed")


async def test_streams_are_bounded(gw, admin) -> None:  # type: ignore[no-untyped-def]
    opened = []
    for _ in range(watch.STREAMS_MAX):
        stream = admin.stream("GET", "/kvgate/live")
        lines = (await stream.__aenter__()).aiter_lines()
        await snapshots(lines, 1)
        opened.append((stream, lines))  # an iterator that is let go closes its reply
    refused = await admin.get("/kvgate/live")
    assert refused.status_code == 429 and "close one" in refused.json()["error"]["message"]
    assert await open_dashboards(admin) == watch.STREAMS_MAX
    for stream, _ in opened:
        await stream.__aexit__(None, None, None)
    await until(lambda: gw.app.memory.stats.count("dashboards") == 0, "all are closed")
    async with admin.stream("GET", "/kvgate/live") as reply:
        assert reply.status_code == 200


async def test_a_worker_that_ends_sends_browsers_away(gw, admin) -> None:  # type: ignore[no-untyped-def]
    async with admin.stream("GET", "/kvgate/live") as reply:
        lines = reply.aiter_lines()
        await snapshots(lines, 1)
        gw.app.life.draining = True
        assert len(await snapshots(lines, 100)) < 100  # it ends, by itself and completely
    assert (await admin.get("/kvgate/live")).status_code == 503
