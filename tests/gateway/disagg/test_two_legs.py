"""A prompt computed on one engine, answered by another: for the client as from one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from harness import disagg, kv
from harness.disagg import Conf

Play = Callable[[Conf], Any]
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"]


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_is_as_from_one_engine(play: Play, lane: str, path: str) -> None:
    stage = await play(Conf(lane=lane))
    body = disagg.body(path)
    reply = await stage.post(path, body)
    assert reply.status_code == 200, reply.text
    assert disagg.said(reply.json()) == disagg.said(await stage.right(path, body))
    (p,), (d,) = stage.prefills, stage.decodes
    assert disagg.metric(d, "prompt_tokens_by_source_total", "external_kv_transfer") > 0
    assert disagg.metric(d, "prompt_tokens_by_source_total", "local_compute") == 0
    receipt = kv.receipt(reply)
    assert receipt["disaggregate"] == "forced" and receipt["prefill"] == p.address
    assert receipt["engine"] == d.address
    assert reply.json().get("kv_transfer_params") is None
    await stage.quiet()


async def test_a_stream_is_as_from_one_engine(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane))
    body = disagg.completion(stream=True, stream_options={"include_usage": True}, min_tokens=4)
    reply = await stage.post("/v1/completions", body)
    events = [json.loads(line[6:]) for line in reply.text.splitlines()
              if line.startswith("data: {")]  # fmt: skip
    text = "".join(c["text"] for e in events for c in e["choices"])
    plain = disagg.completion(min_tokens=4)
    assert text == disagg.said(await stage.right("/v1/completions", plain))
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert "kv_transfer_params" not in reply.text and reply.text.endswith("data: [DONE]\n\n")
    await stage.quiet()


async def test_auto_decides_and_says_why_and_explain_says_it_before(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane, mode="auto"))
    body = disagg.completion("a word and another " * 400)
    asked = {"request": body, "path": "/v1/completions"}
    said = (await stage.admin.post("/kvgate/explain", json=asked)).json()["disaggregate"]
    reply = await stage.post("/v1/completions", body)
    why = kv.receipt(reply)["disaggregate"]
    assert why == said["why"] and why in ("cheaper", "cheaper_one", "hit", "short")
    assert (said["prefill"] is not None) == ("prefill" in kv.receipt(reply))
    assert said["decode"] == stage.decodes[0].address
    assert disagg.said(reply.json()) == disagg.said(await stage.right("/v1/completions", body))


async def test_an_engine_is_moved_between_roles(play: Play) -> None:
    stage = await play(Conf(2, lane="express"))
    engine = stage.engine(stage.prefills[0])
    engine.role = "decode"
    engine.team.refresh(0.0)
    for _ in range(4):
        receipt = kv.receipt(await stage.post("/v1/completions", disagg.fresh()))
        assert receipt["prefill"] == stage.prefills[1].address
    status = (await stage.admin.get("/kvgate/status")).json()["upstreams"]["sim"]["engines"]
    roles = {e["address"]: e["role"] for e in status}
    assert roles[stage.prefills[0].address] == "decode"


async def test_counts_of_it_all(play: Play, lane: str) -> None:
    stage = await play(Conf(lane=lane))
    for more in ({}, {"stream": True}, {"n": 2, "temperature": 1}):
        await stage.post("/v1/completions", {**disagg.fresh(), **more})
    await stage.quiet()
    text = (await stage.admin.get("/metrics")).text
    for line in (
        'kvgate_disaggregated_requests_total{why="forced"} 2.0',
        'kvgate_disaggregated_requests_total{why="choices"} 1.0',
        'kvgate_transfers_total{end="used"} 2.0',
        "kvgate_transfers_pending 0.0",
        "kvgate_second_leg_delay_seconds_count 2.0",
        "kvgate_prefill_leg_seconds_count 2.0",
        "kvgate_fetch_seconds_count 1.0",
    ):
        assert line in text, line


async def test_behind_another_server(play: Play) -> None:
    stage = await play(Conf())
    for more in ({}, {"stream": True}):
        body = {**disagg.fresh(), **more}
        reply = await stage.gw.memory.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert kv.receipt(reply)["prefill"] == stage.prefills[0].address
    await stage.quiet()
