"""An engine that dies takes its running replies with it, and nothing else; and may come back."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from e2e import cases
from e2e.fleet import Engine, Lane
from harness import waiting


@pytest.fixture
def victim(engines: list[Engine]) -> Iterator[Engine]:
    """The second engine; alive and ready again when the test is over."""
    yield engines[1]
    if not engines[1].server.alive:
        engines[1].launch()
        engines[1].server.wait_ready()


def short(http: httpx.Client, lane: Lane) -> httpx.Response:
    path, body = cases.chat(max_tokens=4)
    return http.post(lane.base_url + path, json=body)


def test_traffic_goes_on_without_a_killed_engine_and_returns_with_it(
    gateway: dict[str, Lane], engines: list[Engine], victim: Engine, http: httpx.Client
) -> None:
    survivor = engines[0]
    path, body = cases.chat(stream=True, max_tokens=1900, ignore_eos=True)
    lanes = list(gateway.values())
    for lane in lanes:
        waiting.until(
            lambda lane=lane: short(http, lane).headers["x-engine"] == victim.address,
            "the victim to be used",
            60,
        )
    # Streams on both engines, through both lanes, cut when the victim dies.
    running = [
        http.stream("POST", lanes[number % 2].base_url + path, json=body) for number in range(4)
    ]
    replies = [stream.__enter__() for stream in running]
    lines = [reply.iter_lines() for reply in replies]
    for each in lines:
        assert next(each).startswith("data:")
    on_victim = [
        number
        for number, reply in enumerate(replies)
        if reply.headers["x-engine"] == victim.address
    ]
    assert 0 < len(on_victim) < 4
    victim.server.kill()

    for number in on_victim:
        rest = [line for line in lines[number] if line]
        assert "[DONE]" not in rest[-1], "a cut stream must not look complete"
        assert '"code":"upstream_lost"' in rest[-1].replace(" ", "")
    for number in set(range(4)) - set(on_victim):
        assert next(lines[number]) is not None  # the others go on
        running[number].__exit__(None, None, None)

    for lane in lanes * 4:
        reply = short(http, lane)
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-engine"].split(", ")[-1] == survivor.address

    victim.launch()
    victim.server.wait_ready()
    for lane in lanes:
        waiting.until(
            lambda lane=lane: short(http, lane).headers["x-engine"] == victim.address,
            "the engine to be used again",
            60,
        )
