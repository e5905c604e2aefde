"""`read`: that it raises nothing, numbers, and chats."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.prompt_answers import ALL, IN_PARTS, PLAIN, USER, Body, text_of, why
from harness.prompt_requests import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.vllm.chat import (
    EngineOptions,
    Ids,
    ModelPrompt,
    Sources,
    Texts,
    Unknown,
    Why,
    read,
)

# -- nothing is raised


@pytest.mark.parametrize("model", [PLAIN, IN_PARTS], ids=["string", "parts"])
@pytest.mark.parametrize("oddity", [0.02, 0.4])
def test_made_up_requests_are_answered(model: ModelPrompt, oddity: float) -> None:
    kinds = {type(read(path, body, model)) for path, body in requests(7, 3000, oddity)}
    assert kinds == {Texts, Ids, Unknown}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["user", "assistant", "tool", "text", "function", "auto", "none"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "name",
                         "arguments", "id", "messages", "tools", "input", "output", "summary"])
        | st.text(max_size=3), inner, max_size=5),
    max_leaves=12,
)
PATHS = st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
                         "/v1/embeddings", "/score", "/tokenize", "/v1/models"])


@settings(max_examples=400, deadline=None)
@given(PATHS, st.dictionaries(
    st.sampled_from(["messages", "prompt", "input", "tools", "chat_template_kwargs", "system",
                     "instructions", "documents", "reasoning", "thinking", "queries", "cache_salt",
                     "add_generation_prompt", "continue_final_message", "kv_transfer_params"]),
    JSON, max_size=5))
def test_any_object_is_answered(path: str, body: Body) -> None:
    for model in (PLAIN, IN_PARTS):
        assert isinstance(read(path, json.dumps(body).encode(), model), Texts | Ids | Unknown)
        assert isinstance(read(path, body, model), Texts | Ids | Unknown)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text()},
    optional={"tool_call_id": st.text(), "name": st.text(), "reasoning": st.text()}), min_size=1))
def test_the_short_way_is_the_long_way(messages: list[Body]) -> None:
    """Plain messages are read without looking at forms; one more field takes the long way."""
    longer = [{**message, "unknown": 1} for message in messages]
    for model in (PLAIN, IN_PARTS):
        one = read("/v1/chat/completions", {"messages": messages}, model)
        assert one == read("/v1/chat/completions", {"messages": longer}, model)


@given(st.binary(max_size=40))
def test_any_bytes_are_answered(body: bytes) -> None:
    assert isinstance(read("/v1/chat/completions", body, PLAIN), Unknown)


def test_deep_nesting_is_refused() -> None:
    assert why("/v1/chat/completions", b'{"messages": ' + b"[" * 200_000) is Why.REFUSED


# -- numbers


@pytest.mark.parametrize("number", ["18446744073709551616", "123456789012345678901234567890",
                                    "1e25", "1.0", "1e-7", "NaN", "-9223372036854775809"])
def test_numbers_keep_their_form(number: str) -> None:
    """As Python writes what Python read: the body is parsed by `json` where orjson would round."""
    tool = '{"type": "function", "function": {"name": "f", "parameters": {"const": NUMBER}}}'
    call = '{"id": "c", "type": "function", "n": NUMBER,' \
           ' "function": {"name": "f", "arguments": "{}"}}'
    for form in (
        '{"messages": [{"role": "user", "content": "x"}], "tools": [' + tool + "]}",
        '{"messages": [{"role": "assistant", "content": "", "tool_calls": [' + call + "]}]}",
    ):
        body = form.replace("NUMBER", number).encode()
        answer = read("/v1/chat/completions", body, PLAIN)
        assert isinstance(answer, Texts)
        assert f": {json.dumps(json.loads(number))}" in answer.texts[0]
        # Also once the set of tools is remembered under whatever orjson made of it.
        assert read("/v1/chat/completions", body, PLAIN) == answer


def test_the_last_of_equal_keys_counts() -> None:
    body = b'{"messages": [], "messages": [{"role": "user", "content": "a", "content": "b"}]}'
    assert read("/v1/chat/completions", body, PLAIN) == read(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "b"}]}, PLAIN)


def test_half_a_surrogate_pair_is_refused() -> None:
    assert why("/v1/chat/completions", rb'{"messages": [{"role": "user", "content": "\ud800"}]}') \
        is Why.REFUSED


# -- chat


def test_media_are_not_guessed() -> None:
    part = {"type": "image_url", "image_url": {"url": "http://x"}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]}
    assert why("/v1/chat/completions", body) is Why.MEDIA


def test_a_template_of_the_request_is_taken_only_when_trusted() -> None:
    body = {"messages": [USER], "chat_template": "{{ messages[0].content }}!"}
    assert why("/v1/chat/completions", body) is Why.TEMPLATE
    trusting = ModelPrompt(Sources.of(ALL), options=EngineOptions(request_templates=True))
    assert text_of("/v1/chat/completions", body, trusting) == "Hi!"


def test_tools_can_be_left_out_by_choice() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    body = {"messages": [USER], "tools": [tool], "tool_choice": "none"}
    assert '"name": "f"' in text_of("/v1/chat/completions", body)
    leaving_out = ModelPrompt(Sources.of(ALL), options=EngineOptions(exclude_tools=True))
    assert "|null|" in text_of("/v1/chat/completions", body, leaving_out)


def test_defaults_of_the_engine_give_way() -> None:
    model = ModelPrompt(Sources.of(ALL), options=EngineOptions(
        template_kwargs={"enable_thinking": True, "add_generation_prompt": False}))
    body: Body = {"messages": [USER]}
    assert text_of("/v1/chat/completions", body, model).endswith("|true|True")
    body["chat_template_kwargs"] = {"enable_thinking": False}
    assert text_of("/v1/chat/completions", body, model).endswith("|true|False")
    body["chat_template_kwargs"] = {"enable_thinking": None}
    assert text_of("/v1/chat/completions", body, model).endswith("|true|True")


def test_special_tokens_and_salt_are_told() -> None:
    answer = read("/v1/chat/completions", {"messages": [USER], "cache_salt": "s"}, PLAIN)
    assert isinstance(answer, Texts)
    assert (answer.add_special_tokens, answer.cache_salt) == (False, "s")
    answer = read("/v1/responses", {"input": "Hi"}, PLAIN)
    assert isinstance(answer, Texts) and answer.add_special_tokens
    answer = read("/v1/completions", {"prompt": "Hi"}, PLAIN)
    assert answer == Texts(("Hi",), True)
    answer = read("/v1/completions", {"prompt": "Hi", "add_special_tokens": False}, PLAIN)
    assert answer == Texts(("Hi",), False)


@pytest.mark.parametrize(("field", "value"), [
    ("truncate_prompt_tokens", 5), ("kv_transfer_params", {"prompt_token_ids": [1]}),
    ("add_generation_prompt", "true"), ("add_special_tokens", 1),
])  # fmt: skip
def test_fields_that_hide_the_prompt(field: str, value: Any) -> None:
    assert why("/v1/chat/completions", {"messages": [USER], field: value}) in (Why.OTHER, Why.ODD)


def test_a_model_rendered_elsewhere() -> None:
    model = ModelPrompt(Sources.of(ALL), elsewhere="Harmony")
    assert why("/v1/chat/completions", {"messages": [USER]}, model) is Why.ELSEWHERE
    assert read("/v1/completions", {"prompt": "a"}, model) == Texts(("a",), True)


def test_no_template() -> None:
    assert why("/v1/chat/completions", {"messages": [USER]}, ModelPrompt(Sources())) is Why.TEMPLATE
