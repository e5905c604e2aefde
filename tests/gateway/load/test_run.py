"""Runs: sent when due whatever came of those before, held by a cap, ended by a limit or a user."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from gateway.load.client import Reply, Target
from gateway.load.goodput import Slo
from gateway.load.offer import Offer, Offers
from gateway.load.prompts import Asking, Writer
from gateway.load.run import Limits, Run, Sender
from gateway.load.summary import summarise

FAR_S = 60.0  # beyond any test


class Scripted:
    """In place of a pool: answers as it is told."""

    def __init__(self, send: Callable[[Reply], Awaitable[None]]) -> None:
        self._send = send

    async def resolve(self) -> None:
        pass

    async def send(self, reply: Reply, sent: bytes) -> None:
        assert sent.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: a:1\r\n")
        reply.sent_s = monotonic()
        await self._send(reply)
        reply.chunks_s = [monotonic()]
        reply.done_s = reply.chunks_s[0]

    def close(self) -> None:
        pass


def sender(send: Callable[[Reply], Awaitable[None]], limits: Limits) -> Sender:
    made = Sender(Target("a", 1), "/v1/completions", Writer(Asking("m"), 16, "a"), limits)
    made._pool = Scripted(send)  # type: ignore[assignment]
    return made


async def run(
    times: list[float], send: Callable[[Reply], Awaitable[None]], limits: Limits | None = None
) -> Run:
    offers = Offers([Offer(at, 4, 1) for at in times])
    made = sender(send, limits or Limits())
    async with asyncio.timeout(FAR_S):
        return await made.run(offers, asyncio.Event(), lambda run, at_once: None)


async def test_a_slow_answer_delays_no_request() -> None:
    seen: list[Reply] = []
    all_came = asyncio.Event()

    async def until_all_came(reply: Reply) -> None:
        seen.append(reply)
        if len(seen) == 3:
            all_came.set()
        await all_came.wait()  # a closed loop would wait here for ever

    found = await run([0.0, 0.01, 0.02], until_all_came)
    assert [one.end for one in found.replies] == ["completed"] * 3 and found.most == 3
    assert all(one.sent_s >= one.due_s for one in found.replies)


async def test_what_a_cap_holds_back_is_late_from_its_due_time() -> None:
    gate = asyncio.Event()

    async def first_waits(reply: Reply) -> None:
        if not gate.is_set():
            asyncio.get_running_loop().call_later(0.05, gate.set)
            await gate.wait()

    found = await run([0.0, 0.0], first_waits, Limits(concurrency=1))
    first, second = found.replies
    assert (found.held, found.most) == (1, 1)
    assert first.held_s == 0 and 0 < second.held_s <= second.sent_s - second.due_s
    summary = summarise(found, Slo())
    late = summary.spreads["ttft"], summary.spreads["ttft_sent"]
    assert late[0] is not None and late[1] is not None
    assert late[0].most >= second.held_s > late[1].quantiles[0.5].value / 2


async def test_an_answer_that_takes_too_long_is_a_failure() -> None:
    async def never(reply: Reply) -> None:
        await asyncio.Event().wait()

    found = await run([0.0], never, Limits(timeout_s=0.05))
    assert [(one.end, one.cause) for one in found.replies] == [("failed", "timeout")]
    assert summarise(found, Slo(ttft_s=1.0)).goodput is not None


async def test_a_user_who_stops_it_gets_what_there_is() -> None:
    stop = asyncio.Event()
    count = 0

    async def second_stops(reply: Reply) -> None:
        nonlocal count
        count += 1
        if count == 2:
            stop.set()
            await asyncio.Event().wait()

    offers = Offers([Offer(at, 4, 1) for at in (0.0, 0.02, FAR_S)])
    made = sender(second_stops, Limits())
    async with asyncio.timeout(FAR_S / 2):
        found = await made.run(offers, stop, lambda run, at_once: None)
    assert [one.end for one in found.replies] == ["completed", "cut"] and found.stopped
    summary = summarise(found, Slo(ttft_s=9.0))
    assert (summary.offered, summary.completed, summary.cut) == (2, 1, 1)
    assert summary.goodput is not None and summary.goodput.counted == 1
