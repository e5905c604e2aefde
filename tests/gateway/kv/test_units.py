"""Pure parts of routing by prompts: what is asked of engines, bytes in place of tokens, counts."""

from __future__ import annotations

import json
from types import SimpleNamespace as Fake
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import prompt
from gateway.kv import engine_tokens, probes
from gateway.kv.counts import HISTOGRAMS, KvCounts
from gateway.kv.engine_tokens import Question, tokenize_body
from gateway.kv.routed import REASONS, SOURCES, TIERS, Routed
from gateway.site import policy
from native._core import Prompt, scan

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        (CHAT, {"model": "m", "messages": HI, "max_tokens": 4, "stream": True},
         {"model": "m", "messages": HI}),
        (CHAT, {"messages": HI, "tools": [1], "add_generation_prompt": False},
         {"messages": HI, "tools": [1], "add_generation_prompt": False}),
        (CHAT, {"messages": HI, "reasoning_effort": "low", "chat_template_kwargs": {"a": 1}},
         {"messages": HI, "chat_template_kwargs": {"reasoning_effort": "low", "a": 1}}),
        (TEXT, {"model": "m", "prompt": "x", "n": 2},
         {"model": "m", "prompt": "x", "add_special_tokens": True}),
        (TEXT, {"prompt": ["x", "y"]}, {"prompt": "x", "add_special_tokens": True}),
        ("/v1/embeddings", {"input": "x"}, {"prompt": "x", "add_special_tokens": True}),
        (TEXT, {"prompt": [[1, 2]]}, None),
        (TEXT, {}, None),
        (CHAT, {}, None),
        ("/v1/responses", {"input": "x"}, None),
        ("/v1/messages", {"messages": HI}, None),
    ],
)  # fmt: skip
def test_what_is_asked_of_tokenize(path: str, body: Any, asked: Any) -> None:
    raw = tokenize_body(Question(path, json.dumps(body).encode()))
    assert (None if raw is None else json.loads(raw)) == asked


def test_what_is_no_object_is_not_asked() -> None:
    for raw in (b"", b"[]", b"{", b"7"):
        assert tokenize_body(Question(CHAT, raw)) is None


def test_ids_of_a_render_end_where_media_begin() -> None:
    reply: dict[str, Any] = {"token_ids": [1, 2, 3, 4], "features": None}
    assert engine_tokens._rendered(reply).whole
    reply["features"] = {"mm_placeholders": {"image": [{"offset": 2, "length": 1}], "audio": []}}
    found = engine_tokens._rendered(reply)
    assert (found.ids, found.whole) == ([1, 2], False)


def by_bytes(body: dict[str, Any]) -> Routed:
    kv = Routed(CHAT.encode(), Fake(), Fake())  # type: ignore[arg-type]
    kv.body = json.dumps(body).encode()
    kv.scan = scan(kv.body)
    prompt.approximate(kv, "loading")
    return kv


@given(st.lists(st.text(max_size=60), min_size=1, max_size=6), st.text(max_size=40))
def test_a_conversation_by_bytes_only_grows_at_its_end(said: list[str], more: str) -> None:
    talk = [{"role": "user", "content": text} for text in said]
    before, after = by_bytes({"messages": talk, "n": 1}), by_bytes({"n": 2, "messages": [
        *talk, {"role": "user", "content": more}]})  # fmt: skip
    assert before.prompt is not None and after.prompt is not None
    assert (before.source, before.reason, before.prompt.exact) == ("bytes", "loading", False)
    whole = len(json.dumps(talk)) - 1  # but for the closing bracket
    shared = before.prompt.hashes(4)[: whole // 16 * 8]
    assert after.prompt.hashes(4).startswith(shared)


def test_a_body_without_a_prompt_has_none_by_bytes_either() -> None:
    kv = by_bytes({"model": "x"})
    assert (kv.prompt, kv.source, kv.reason) == (None, "", "no_prompt")


def test_scopes_and_salts_are_told_apart() -> None:
    scopes = [("a", None), ("a", "b"), ("b", None), ("ab", None), ("", "ab")]
    salts = {policy.salt({"cache-scope": scope}, own) for scope, own in scopes}
    assert len(salts) == len(scopes)
    for salt in salts:
        assert len(salt) == 32 and salt.isalnum()


@pytest.mark.parametrize(
    ("asked", "own", "method"),
    [
        ({}, "kv", "kv"), ({"policy": "kv"}, "kv", "kv"), ({"policy": "kv"}, "hash", "hash"),
        ({"policy": "least"}, "kv", "least_conn"), ({"session": "s"}, "kv", "kv"),
        ({"session": "s"}, "random", "hash"), ({"policy": "hash"}, "kv", "hash"),
        ({"policy": "random", "session": "s"}, "kv", "random"), ({}, "ip_hash", "ip_hash"),
    ],
)  # fmt: skip
def test_the_method_of_a_pick(asked: dict[str, str | float], own: str, method: str) -> None:
    assert policy.method(asked, own) == method


def routed(matched: int = 0, **more: Any) -> Any:
    row = Fake(**(dict.fromkeys(TIERS, 0) | {"device": matched}))
    fields = {"source": "local", "reason": "", "tokenize_s": 0.0002, "decide_s": 0.00002,
              "reader": Fake(row=row), "prompt": Fake(tokens=96, exact=True), "matched": matched,
              "comparable": True}  # fmt: skip
    return Fake(**(fields | more))


def test_counts() -> None:
    counts = KvCounts()
    counts.request(routed(32), 32)
    counts.request(routed(32), 48)
    counts.request(routed(64), -1)
    counts.request(routed(source="bytes", reason="media", comparable=False), 16)
    counts.request(routed(source="", reason="refused", reader=None, prompt=None), -1)
    assert [counts.count(f"source/{s}") for s in SOURCES] == [3, 0, 0, 0, 1]
    assert {r for r in REASONS if counts.count(f"reason/{r}")} == {"media", "refused"}
    assert (counts.count("compared"), counts.count("equal")) == (2, 1)
    assert counts.count("compared_predicted") == 64 and counts.count("compared_cached") == 80
    assert (counts.count("matched/device"), counts.count("prompt_tokens")) == (128, 4 * 96)
    buckets, total = counts.histogram("tokenize")
    assert (sum(buckets), len(buckets)) == (5, len(HISTOGRAMS["tokenize"]) + 1)
    assert total == pytest.approx(0.001) and sum(counts.histogram("decide")[0]) == 4


def test_where_two_lists_of_ids_part() -> None:
    assert "token 1: 2 here, 9 in the engine" in probes.difference("x", [1, 2, 3], [1, 9, 3])
    assert "3 tokens here, 2 in the engine" in probes.difference("x", [1, 2, 3], [1, 2])


def test_a_receipt_of_what_is_known() -> None:
    kv = Routed(CHAT.encode(), Fake(), Fake())  # type: ignore[arg-type]
    kv.give_up("refused")
    assert kv.receipt() == b"x-kvgate-prompt: refused\r\n" and kv.tiers == "none"
    kv.prompt, kv.source = Prompt(b"\0" * 64), "local"
    row = Fake(**(dict.fromkeys(TIERS, 0) | {"device": 16, "disk": 32}))
    kv.choice, kv.trust = Fake(row=row, matched=48, cost_ms=1.25), "exact"  # type: ignore[assignment]
    assert kv.receipt() == (
        b"x-kvgate-prompt: local\r\nx-kvgate-prompt-tokens: 16\r\nx-kvgate-matched-tokens: 48\r\n"
        b"x-kvgate-tier: device=16,disk=32\r\nx-kvgate-cost-ms: 1.2\r\nx-kvgate-trust: exact\r\n"
    )
