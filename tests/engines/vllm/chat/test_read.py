"""`read` over all endpoints: what it answers for shapes of each, and that it raises nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
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

# Writes down all it is given, so that every difference shows.
ALL = (
    "{{ messages|tojson }}|{{ (tools if tools is defined else none)|tojson }}|"
    "{{ add_generation_prompt|tojson }}|{{ enable_thinking is defined and enable_thinking }}"
)
PARTS = ALL + "{% for m in messages %}{% for part in m.content %}{% endfor %}{% endfor %}"
PLAIN = ModelPrompt(Sources.of(ALL))
IN_PARTS = ModelPrompt(Sources.of(PARTS))
USER = {"role": "user", "content": "Hi"}

Body = dict[str, Any]


def text_of(path: str, body: Body, model: ModelPrompt = PLAIN) -> str:
    answer = read(path, json.dumps(body).encode(), model)
    assert isinstance(answer, Texts), answer
    assert len(answer.texts) == 1
    return answer.texts[0]


def messages_of(path: str, body: Body, model: ModelPrompt = PLAIN) -> Any:
    return json.loads(text_of(path, body, model).partition("|")[0])


def why(path: str, body: Body | bytes, model: ModelPrompt = PLAIN) -> Why:
    answer = read(path, body if isinstance(body, bytes) else json.dumps(body).encode(), model)
    assert isinstance(answer, Unknown), answer
    assert answer.reason
    return answer.why


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


# -- other endpoints


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
