"""Both legs at once, where the prefill engine writes: NixlPushConnector."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from harness import disagg, kv
from harness.disagg import Conf

from gateway.disagg.push import AGAIN_MAX, Pushed

Play = Callable[[Conf], Any]
PATH, RESPONSES = "/v1/completions", "/v1/responses"
EXPIRED = "nixl_num_kv_expired_reqs_total"
COMPUTED = "prompt_tokens_by_source_total", "local_compute"
PUSH = Conf(connector="NixlPushConnector", upstream="kv_connector push;")


async def right(stage: Any, reply: Any, body: dict[str, Any], path: str = PATH) -> bool:
    assert reply.status_code == 200, reply.text
    return bool(disagg.said(reply.json()) == disagg.said(await stage.right(path, body)))


def streamed(events: str) -> str:
    """The text of a streamed completion."""
    said = [line[6:] for line in events.splitlines() if line.startswith('data: {"')]
    return "".join(choice["text"] for event in said for choice in json.loads(event)["choices"])


async def learnt(stage: Any) -> None:
    """The first request: its legs follow one another."""
    body = disagg.fresh()
    assert await right(stage, await stage.post(PATH, body), body)


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions", "/v1/messages", RESPONSES])
async def test_answers_are_as_from_one_engine(play: Play, lane: str, path: str) -> None:
    stage = await play(replace(PUSH, lane=lane))
    await learnt(stage)
    d = stage.decodes[0]
    for n in range(3):
        body = disagg.body(path, f"{path} {n} {disagg.TEXT}")
        reply = await stage.post(path, body)
        assert await right(stage, reply, body, path)
        assert kv.receipt(reply)["disaggregate"] == "forced"
        sent = d.state()["last_request"]["body"]
        assert sent.startswith('{"kv_transfer_params":{') and "remote_block_ids" not in sent
    assert disagg.metric(d, "prompt_tokens_by_source_total", "local_compute") == 0
    await stage.quiet()


async def test_both_legs_are_sent_at_once_under_one_id(play: Play, lane: str) -> None:
    stage = await play(replace(PUSH, lane=lane))
    await learnt(stage)
    p, d = stage.prefills[0], stage.decodes[0]
    p.faults(["delay:ms=400,times=1"])
    before = d.state()["last_request"]
    asking = asyncio.create_task(stage.post(PATH, disagg.completion()))
    await kv.until(lambda: d.state()["last_request"] != before, "the decode leg")
    assert not asking.done() and p.state()["transfer"]["leases"] == 0
    assert (await asking).status_code == 200
    ids = [dict(e.state()["last_request"]["headers"])["x-request-id"] for e in (p, d)]
    assert ids[0] == ids[1]
    await stage.quiet()


async def test_82_cached_tokens_are_those_of_one_engine(play: Play, lane: str) -> None:
    # An answer takes longer than the reply to the prefill that it follows.
    stage = await play(replace(PUSH, lane=lane, decode_args=("--profile", "fixed:25")))
    for n in range(4):
        body = disagg.completion(disagg.TEXT + f" and {n} more things to say about it all " * n)
        reply = await stage.post(PATH, body)
        own = await stage.right(PATH, body)
        assert kv.receipt(reply)["disaggregate"] == "forced"
        assert kv.cached(reply) == (own["usage"]["prompt_tokens_details"]["cached_tokens"] or 0)
    assert kv.cached(reply) > 0


async def test_a_response_with_a_name_of_its_own_is_answered_by_one_engine(
    play: Play, lane: str
) -> None:
    stage = await play(replace(PUSH, lane=lane))
    reply = await stage.post(RESPONSES, disagg.body(RESPONSES, request_id="resp_mine"))
    assert reply.status_code == 200 and kv.receipt(reply)["disaggregate"] == "field"


@pytest.mark.parametrize(
    ("fault", "why"), [("status:code=500,times=1", "prefill_failed"), ("reset:times=1", None)]
)
async def test_76b_a_prefill_that_fails_ends_the_other_leg(
    play: Play, lane: str, fault: str, why: str | None
) -> None:
    stage = await play(replace(PUSH, lane=lane))
    await learnt(stage)
    stage.prefills[0].faults([fault])
    body = disagg.completion()
    reply = await asyncio.wait_for(stage.post(PATH, body), 5)
    assert await right(stage, reply, body)
    assert kv.receipt(reply)["disaggregate"] == (why or "prefill_failed")
    await stage.quiet()


@pytest.mark.parametrize("stream", [False, True])
async def test_blocks_that_are_named_after_their_lease_are_written_nevertheless(
    play: Play, lane: str, stream: bool
) -> None:
    """Seen on real engines: a decode engine has no time for a request until the prefill's lease has
    ended, and nobody tells it that it waits in vain."""
    slow = ("--profile", "fixed:60", "--max-num-seqs", 1)
    stage = await play(replace(PUSH, lane=lane, lease_s=0.7, decode_args=slow))
    await learnt(stage)
    p, d = stage.prefills[0], stage.decodes[0]
    body = disagg.fresh()
    other = disagg.completion("something else to say", max_tokens=30, ignore_eos=True)
    async with httpx.AsyncClient(base_url=f"http://{d.address}", timeout=30) as direct:
        busy = asyncio.create_task(direct.post(PATH, json=other))
        await kv.until(lambda: d.state()["running"] == 1, "the decode engine to be busy")
        reply = await asyncio.wait_for(stage.post(PATH, {**body, "stream": stream}), 20)
        alone = (await busy).json()["usage"]["prompt_tokens"]
    wanted = disagg.said(await stage.right(PATH, body))
    got = streamed(reply.text) if stream else disagg.said(reply.json())
    assert (reply.status_code, got) == (200, wanted)
    assert kv.receipt(reply)["disaggregate"] == "forced"
    assert stage.app.pipeline.decisions.two.count("again") > 0
    assert disagg.metric(p, EXPIRED) > 0
    assert disagg.metric(d, *COMPUTED) == alone
    await stage.quiet()


@pytest.mark.parametrize("fails", [False, True])
async def test_an_engine_that_does_not_hear_of_the_blocks_computes_the_prompt(
    play: Play, lane: str, fails: bool
) -> None:
    """Once they have been written again in vain, or the other engine does not do that."""
    stage = await play(replace(PUSH, lane=lane, lease_s=0.7))
    await learnt(stage)
    stage.decodes[0].faults(["delay:ms=60000,times=1"])
    stage.prefills[0].faults(["status:code=500,skip=1"] if fails else [])
    body = disagg.fresh()
    reply = await asyncio.wait_for(stage.post(PATH, body), 20)
    assert await right(stage, reply, body)
    assert kv.receipt(reply)["disaggregate"] == "expired"
    assert stage.app.pipeline.decisions.two.count("again") == (1 if fails else AGAIN_MAX)


async def test_a_stream_that_is_never_written_the_blocks_ends_with_an_error(
    play: Play, lane: str
) -> None:
    """Its head has been relayed: it cannot be begun anew."""
    stage = await play(replace(PUSH, lane=lane, lease_s=0.7))
    await learnt(stage)
    stage.decodes[0].faults(["slow_first:ms=60000,times=1"])
    body = {**disagg.fresh(), "stream": True}
    reply = await asyncio.wait_for(stage.post(PATH, body), 20)
    assert reply.status_code == 200 and "upstream_lost" in reply.text
    assert stage.app.pipeline.decisions.two.count("again") == AGAIN_MAX


async def test_76h_a_request_that_both_refuse_ends_at_once(play: Play, lane: str) -> None:
    stage = await play(replace(PUSH, lane=lane))
    await learnt(stage)
    reply = await asyncio.wait_for(stage.post(PATH, {**disagg.fresh(), "temperature": -1}), 3)
    assert reply.status_code == 400 and "temperature" in reply.text
    await stage.quiet()


async def test_an_engine_that_is_another_now_is_told_by_its_new_name(
    play: Play, lane: str
) -> None:
    stage = await play(replace(PUSH, lane=lane, policy="fail", handshake_s=20.0))
    await learnt(stage)
    stage.prefills[0].faults(["restart"])
    body = disagg.completion()
    stage.prefills[0].faults(["delay:ms=100,times=1"])
    reply = await asyncio.wait_for(stage.post(PATH, body), 10)
    assert reply.status_code in (200, 500)
    for _ in range(2):
        body = disagg.fresh()
        reply = await asyncio.wait_for(stage.post(PATH, body), 10)
        assert await right(stage, reply, body)


async def test_a_client_that_leaves_ends_both(play: Play, lane: str) -> None:
    stage = await play(replace(PUSH, lane=lane, prefill_args=("--profile", "fixed:100")))
    await learnt(stage)
    p, d = stage.prefills[0], stage.decodes[0]
    asking = asyncio.create_task(stage.post(PATH, disagg.completion()))
    await kv.until(lambda: d.state()["transfer"]["pulls"] > 0, "the decode leg to wait")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    engines = [stage.engine(e) for e in (p, d)]
    await kv.until(lambda: not any(e.connections()[1] for e in engines), "both legs' end")
    await kv.until(lambda: d.state()["running"] == 0, "the answer to be dropped")


async def test_a_decode_engine_that_cannot_be_reached_does_not_end_the_prefill(
    play: Play, lane: str
) -> None:
    """Another one answers, of the same prefill."""
    stage = await play(replace(PUSH, lane=lane, decodes=2, prefill_args=("--profile", "fixed:50")))
    await learnt(stage)
    p, (dead, other) = stage.prefills[0], stage.decodes
    dead.stop()

    def done() -> float:
        return disagg.metric(p, "request_success_total", "length")

    before = done()
    for count in range(1, 5):  # whichever is asked first
        body = disagg.fresh()
        reply = await asyncio.wait_for(stage.post(PATH, body), 10)
        assert await right(stage, reply, body)
        assert kv.receipt(reply)["engine"] == other.address
        assert done() == before + count
    assert disagg.metric(other, "prompt_tokens_by_source_total", "local_compute") == 0
    await stage.quiet()


async def test_a_client_that_leaves_before_the_decode_leg_is_sent(
    play: Play, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefill goes on, and what it hands over is let go."""
    upstream = f"{PUSH.upstream} keepalive_requests 1;"
    stage = await play(replace(PUSH, lane=lane, upstream=upstream))
    await learnt(stage)
    p, begin, sent = stage.prefills[0], Pushed.begin, []

    def cut(self: Pushed, *what: Any) -> None:
        begin(self, *what)
        sent.append(self._ctx.leg.bytes_sent)
        self._ctx.client.cut()

    monkeypatch.setattr(Pushed, "begin", cut)
    with pytest.raises(httpx.HTTPError):
        await stage.post(PATH, disagg.fresh())
    assert sent == [0]
    await stage.quiet()
    await kv.until(lambda: p.state()["blocks_used"] == 0, "no block in use")
    assert disagg.metric(p, EXPIRED) == 0
