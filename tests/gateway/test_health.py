"""Active checks: what a streak amounts to, and what they do to picks."""

from __future__ import annotations

import asyncio
import time

from gateway.conf.model import HealthCheck
from gateway.fleet.health import Streak

CHECK = HealthCheck(fails=3, passes=2)


async def until(condition, what: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


def test_the_first_check_decides_by_itself() -> None:
    assert Streak().add(True, CHECK) is True
    assert Streak().add(False, CHECK) is False


def test_then_streaks_do() -> None:
    streak = Streak()
    streak.add(True, CHECK)
    assert [streak.add(False, CHECK) for _ in range(3)] == [None, None, False]
    assert [streak.add(True, CHECK) for _ in range(2)] == [None, True]
    assert [streak.add(ok, CHECK) for ok in (False, False, True, False)][:2] == [None, None]


def conf(*addresses: str, more: str = "") -> str:
    servers = " ".join(f"server {address};" for address in addresses)
    return (
        f"upstream main {{ {servers} health_check interval=100ms timeout=1s fails=2; {more} }}"
        "server { listen 127.0.0.1:0; location / { proxy_pass http://main; } }"
    )


async def test_failing_engine_is_skipped_and_comes_back(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    well = {"a": 200}
    a = await engine(lambda m, t, b: (well["a"] if t == b"/health" else 200, {}, b"{}"))
    b = await engine(lambda m, t, b: (200, {}, b"{}"))
    gw = await gateway(conf(a.address, b.address))
    first, _ = gw.app.table.groups["main"].engines
    await until(lambda: gw.app.health.settled, "first round")
    well["a"] = 503
    await until(lambda: not first.healthy, "a unhealthy")
    assert "503" in first.why
    before = len([x for x in a.asked if x.method == b"POST"])
    for _ in range(6):
        assert (await gw.client.post("/v1/completions", json={})).status_code == 200
    assert len([x for x in a.asked if x.method == b"POST"]) == before
    well["a"] = 200
    await until(lambda: first.healthy, "a healthy again")


async def test_checks_carry_the_key_and_touch_no_counters(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    """R#159: the key was not sent with health checks; R#197: checks reset the load counters."""

    def answer(method: bytes, target: bytes, body: bytes) -> tuple[int, dict[str, str], bytes]:
        return (200 if target != b"/health" or authorized() else 401), {}, b"{}"

    def authorized() -> bool:
        return one.asked[-1].headers.get(b"authorization") == b"Bearer k"

    one = await engine(answer)
    gw = await gateway(conf(one.address, more="api_key k;"))
    made = gw.app.table.groups["main"].engines[0]
    gw.app.table.ledger.take(made.slot)
    seen = len(one.asked)
    await until(lambda: len(one.asked) > seen + 10, "ten checks")
    assert made.healthy and gw.app.table.ledger.in_flight(made.slot) == 1
    gw.app.table.ledger.give(made.slot)


async def test_nobody_well_is_503_with_retry_after(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    one = await engine(lambda m, t, b: (500 if t == b"/health" else 200, {}, b"{}"))
    gw = await gateway(conf(one.address))
    await until(lambda: gw.app.health.settled, "first round")
    reply = await gw.client.post("/v1/completions", json={})
    assert reply.status_code == 503 and reply.json()["error"]["code"] == "no_engine_available"
    assert reply.headers["retry-after"] == "1"
    ready = await gw.client.get("/kvgate/ready")
    assert ready.status_code == 503 and "no engine" in ready.json()["reason"]
    assert (await gw.client.get("/kvgate/health")).status_code == 200


async def test_checks_follow_the_table(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    """PS#680: checks used the old list after a reload."""
    a, b = await engine(), await engine()
    gw = await gateway(conf(a.address))
    await until(lambda: len(a.asked) > 3, "checks of a")
    upstream = gw.app.config.upstreams["main"]
    line = upstream.engines[0]
    host, _, port = b.address.partition(":")
    changed = type(line)(b.address, host, int(port), "")
    replaced = type(upstream)("main", (changed,), health_check=upstream.health_check)
    gw.app.table.apply([replaced], {"main": {"http"}}, time.monotonic())
    gw.app.health.sync()
    await until(lambda: len(b.asked) > 3, "checks of b")
    seen = len(a.asked)
    was = len(b.asked)
    await until(lambda: len(b.asked) > was + 3, "more checks of b")
    assert len(a.asked) <= seen + 1
