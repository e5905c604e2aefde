"""`limit_req` beside a real nginx: the same requests, the same answers. The arithmetic itself is
compared in `native/src/limits.rs`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

ZONES = """
limit_req_zone $arg_k zone=minute:1m rate=1r/m;
limit_req_zone $arg_k zone=second:1m rate=1r/s;
limit_req_zone $arg_k zone=fast:1m rate=5r/s;
limit_req_zone $arg_all zone=all:1m rate=1r/m;
"""
LIMITS = {
    "/v1/none": "limit_req zone=minute;",
    "/v1/burst": "limit_req zone=minute burst=3 nodelay;",
    "/v1/two": "limit_req zone=minute burst=5 nodelay; limit_req zone=all burst=2 nodelay;",
    "/v1/second": "limit_req zone=second;",
    "/v1/slow": "limit_req zone=fast burst=5;",
    "/v1/some": "limit_req zone=fast burst=5 delay=3;",
}
SERVER = "limit_req_status 429;" + "".join(
    f"location {path} {{ {limit} proxy_pass http://u; }}" for path, limit in LIMITS.items()
)


class Both:
    def __init__(self, nginx: Any, gateway: Any) -> None:
        self._nginx, self._gateway = nginx, gateway

    async def ask(self, target: str) -> tuple[int, int]:
        theirs = await asyncio.to_thread(self._nginx.ask, target)
        return theirs.status, (await self._gateway.client.get(target)).status_code

    async def burst(self, target: str, times: int) -> tuple[float, float]:
        """All at once: seconds until the last answer, of each. All must pass."""
        loop = asyncio.get_running_loop()
        took = []
        for asked in (
            lambda: asyncio.to_thread(self._nginx.ask, target),
            lambda: self._gateway.client.get(target),
        ):
            start = loop.time()
            answers = await asyncio.gather(*(asked() for _ in range(times)))
            took.append(loop.time() - start)
            assert {getattr(a, "status", 0) or a.status_code for a in answers} == {200}
        return took[0], took[1]


@pytest.fixture
async def both(nginx: Any, gateway: Any, engine: Any) -> Both:
    one = await engine()
    echo = "server { listen unix:{folder}/echo; return 200; }"
    upstream = "upstream u { server unix:{folder}/echo; }"
    server = f"server {{ listen unix:{{folder}}/s; {SERVER} }}"
    await asyncio.to_thread(nginx.start, ZONES + upstream + echo + server)
    upstream = f"upstream u {{ server {one.address}; health_check off; }}"
    started = await gateway(ZONES + upstream + f"server {{ listen 127.0.0.1:0; {SERVER} }}")
    return Both(nginx, started)


async def test_who_is_refused(both: Both) -> None:
    for target in (
        "/v1/none?k=1", "/v1/none?k=1", "/v1/none?k=2", "/v1/none", "/v1/none", "/v1/none",
        *("/v1/burst?k=3" for _ in range(6)), "/v1/none?k=3", "/v1/burst?k=4",
        *("/v1/two?k=5&all=1" for _ in range(5)), *("/v1/two?k=5" for _ in range(5)),
    ):  # fmt: skip
        theirs, mine = await both.ask(target)
        assert theirs == mine, target


async def test_a_rate_lets_through_what_it_says(both: Both) -> None:
    loop = asyncio.get_running_loop()
    assert await both.ask("/v1/second?k=1") == (200, 200)
    start = loop.time()
    came = {}
    async with asyncio.timeout(20):
        while len(came) < 2:
            for at, status in enumerate(await both.ask("/v1/second?k=1")):
                if status == 200:
                    came.setdefault(at, loop.time() - start)
            await asyncio.sleep(0.02)
    assert came[0] > 0.8 and came[1] > 0.8


async def test_what_waits(both: Both) -> None:
    for target, least in (("/v1/slow?k=1", 0.55), ("/v1/some?k=2", 0.15)):
        theirs, mine = await both.burst(target, 5 if "some" in target else 4)
        assert min(theirs, mine) > least
