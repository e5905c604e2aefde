"""`read` for endpoints other than chat: completions, responses, messages, pooling, tokenize."""

from __future__ import annotations

from typing import Any

import pytest
from harness.prompt_answers import ALL, PLAIN, USER, Body, messages_of, text_of, why

from engines.vllm.chat import Ids, ModelPrompt, Sources, Texts, Why, read


@pytest.mark.parametrize(("prompt", "expected"), [
    ("a", Texts(("a",), True)),
    (["a", ""], Texts(("a", ""), True)),
    ([1, 2], Ids(([1, 2],))),
    ([[1], [2, 3]], Ids(([1], [2, 3]))),
])  # fmt: skip
def test_completions(prompt: Any, expected: Any) -> None:
    assert read("/v1/completions", {"prompt": prompt}, PLAIN) == expected


@pytest.mark.parametrize("prompt", ["", None, [], [[]], [1, "a"], [-1], [2**32], [True], {"a": 1}])
def test_completions_without_a_known_prompt(prompt: Any) -> None:
    assert why("/v1/completions", {"prompt": prompt}) in (Why.REFUSED, Why.ODD)


def test_token_ids_in() -> None:
    body: Body = {"token_ids": [1, 2], "cache_salt": "s"}
    assert read("/inference/v1/generate", body, PLAIN) == Ids(([1, 2],), "s")
    assert why("/inference/v1/generate", {**body, "features": {}}) is Why.MEDIA
    assert why("/inference/v1/generate", {"token_ids": "a"}) is Why.ODD


def test_a_response_in_an_engines_memory() -> None:
    assert why("/v1/responses", {"input": "a", "previous_response_id": "resp_1"}) is Why.STATE


def test_items_of_a_response_become_one_message() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "w?"}]},
        {"type": "reasoning", "summary": [], "content": [
            {"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "", "namespace": "n"},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "done"}, {"type": "output_text", "text": "unseen"}]},
    ]
    assert messages_of("/v1/responses", {"input": items, "instructions": "S"}) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "w?"},
        {"role": "assistant", "content": "", "reasoning": "hm", "reasoning_content": "hm",
         "tool_calls": [
             {"id": "c1", "function": {"name": "f", "arguments": {"a": 1}}, "type": "function"},
             {"id": "c2", "function": {"name": "n__g", "arguments": {}}, "type": "function"}]},
        {"role": "tool", "content": "ok", "tool_call_id": "c1"},
        {"role": "assistant", "content": "done"},
    ]


def test_an_unfinished_response_goes_on() -> None:
    last = {"type": "message", "role": "assistant", "status": "incomplete",
            "content": [{"type": "output_text", "text": "1, 2, "}]}
    model = ModelPrompt(Sources.of("{% for m in messages %}[{{ m.content }}]{% endfor %}"))
    assert text_of("/v1/responses", {"input": [{"role": "user", "content": "count"}, last]},
                   model) == "[count][1, 2, "


def test_blocks_become_messages() -> None:
    billing = {"type": "text", "text": "x-anthropic-billing-header: 1\nx"}
    body = {"model": "m", "max_tokens": 9, "system": [billing, {"type": "text", "text": "S"}],
        "messages": [
            {"role": "user", "content": "w?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1.0}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [
                    {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"type": "text", "text": "and?"}]}]}
    assert messages_of("/v1/messages", body) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "w?"},
        {"role": "assistant", "content": "", "reasoning": "hm", "reasoning_content": "hm",
         "tool_calls": [{"id": "t1", "function": {"arguments": {"a": 1.0}, "name": "f"},
                         "type": "function"}]},
        {"role": "tool", "content": "a\nb", "tool_call_id": "t1"},
        {"role": "user", "content": "and?"},
    ]


def test_later_system_messages_move_where_the_template_wants_one_first() -> None:
    strict = ("{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
              "{{ raise_exception('late') }}{% endif %}[{{ m.content }}]{% endfor %}")
    said = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
    body = {"model": "m", "max_tokens": 9, "messages": said}
    assert text_of("/v1/messages", body, ModelPrompt(Sources.of(strict))) == "[b][a]"
    lenient = ModelPrompt(Sources.of("{% for m in messages %}[{{ m.content }}]{% endfor %}"))
    assert text_of("/v1/messages", body, lenient) == "[a][b]"


def test_thinking_that_cannot_be_turned_off_is_asked_for_little() -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [USER], "thinking": {"type": "disabled"}}
    heeds = ModelPrompt(Sources.of("{{ reasoning_effort }} {{ enable_thinking }}"))
    assert text_of("/v1/messages", body, heeds) == "none False"
    ignores = ModelPrompt(Sources.of("{{ 'low' if reasoning_effort == 'low' else 'much' }}"))
    assert text_of("/v1/messages", body, ignores) == "low"


def test_embeddings_take_texts_ids_and_chats() -> None:
    assert read("/v1/embeddings", {"input": ["a", "b"]}, PLAIN) == Texts(("a", "b"), True)
    assert read("/v1/embeddings", {"input": [3, 4]}, PLAIN) == Ids(([3, 4],))
    assert text_of("/v1/embeddings", {"input": [USER]}).endswith("|false|False")
    several = read("/v1/embeddings", {"messages": [[USER], [USER]]}, PLAIN)
    assert isinstance(several, Texts) and len(several.texts) == 2
    lower = ModelPrompt(Sources.of(ALL), lower_case=True)
    assert read("/v1/embeddings", {"input": "ABC"}, lower) == Texts(("abc",), True)


def test_scores() -> None:
    body = {"queries": "q", "documents": ["a", "b"]}
    assert read("/score", body, PLAIN) == Texts(("q", "a", "b"), True)
    assert why("/score", body, ModelPrompt(Sources(), pairs=True)) is Why.ELSEWHERE
    assert why("/rerank", {"query": "q", "documents": [{"content": []}]}) is Why.MEDIA


def test_tokenize_reads_as_its_endpoint_does() -> None:
    said = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    assert "reasoning" in messages_of("/v1/chat/completions", {"messages": [said]})[0]
    assert "reasoning" not in messages_of("/tokenize", {"messages": [said]})[0]
    assert read("/tokenize", {"prompt": "a"}, PLAIN) == Texts(("a",), True)


def test_an_unknown_path() -> None:
    assert why("/v1/audio/transcriptions", {}) is Why.OTHER
