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
