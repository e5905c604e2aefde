"""The Anthropic interface, through its own client and on the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import pytest

from engines.sim.process import SimEngine

ASK: dict[str, Any] = {"model": "m", "max_tokens": 50,
                       "messages": [{"role": "user", "content": "How are you?"}]}
GREEDY = {"extra_body": {"temperature": 0}}  # the client has no such argument any more
TOOL = {"name": "look", "description": "d", "input_schema": {"type": "object"}}


def client(engine: SimEngine) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=engine.url, api_key="none", max_retries=0)


def texts(message: Any) -> list[str]:
    return [block.text for block in message.content]


def names(text: str) -> list[str]:
    return [e.split("\n")[0].removeprefix("event: ") for e in text[:-2].split("\n\n")]


def test_whole_and_streamed_messages_agree(engine: SimEngine) -> None:
    whole = client(engine).messages.create(**GREEDY, **ASK)
    assert whole.stop_reason == "end_turn" and whole.usage.output_tokens == 6
    with client(engine).messages.stream(**GREEDY, **ASK) as stream:
        streamed = stream.get_final_message()
    assert texts(streamed) == texts(whole)
    assert streamed.usage.output_tokens == 6 and streamed.stop_reason == "end_turn"


def test_the_events_come_in_order(engine: SimEngine) -> None:
    reply = httpx.post(engine.url + "/v1/messages", json={**ASK, "stream": True})
    assert names(reply.text) == [
        "message_start", "content_block_start", *["content_block_delta"] * 5,
        "content_block_stop", "message_delta", "message_stop"]
    first = json.loads(reply.text.split("\n")[1].removeprefix("data: "))
    assert list(first["message"]) == ["id", "type", "role", "content", "model", "stop_reason",
                                      "stop_sequence", "usage"]


def test_thinking_is_a_block_of_its_own(sim: Callable[..., SimEngine]) -> None:
    engine = sim("m", "--tokens", 6, "--reasoning-tokens", 2)
    whole = client(engine).messages.create(**GREEDY, **ASK)
    assert [b.type for b in whole.content] == ["thinking", "text"]
    with client(engine).messages.stream(**GREEDY, **ASK) as stream:
        assert [b.type for b in stream.get_final_message().content] == ["thinking", "text"]


def test_a_tool_is_used(engine: SimEngine) -> None:
    asked = {**ASK, "tools": [TOOL], "tool_choice": {"type": "any"}}
    whole = client(engine).messages.create(**GREEDY, **asked)
    with client(engine).messages.stream(**GREEDY, **asked) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert message.stop_reason == "tool_use"
        assert message.content[0].type == "tool_use" and message.content[0].name == "look"
    assert whole.content[0].input == streamed.content[0].input  # type: ignore[union-attr]


def test_tool_results_and_systems_reach_the_prompt(engine: SimEngine) -> None:
    def count(**more: Any) -> int:
        body = {k: v for k, v in ASK.items() if k != "max_tokens"}
        return client(engine).messages.count_tokens(**{**body, **more}).input_tokens
    turns = [*ASK["messages"],
             {"role": "assistant", "content": [
                 {"type": "tool_use", "id": "t", "name": "look", "input": {"at": "sea"}}]},
             {"role": "user", "content": [
                 {"type": "tool_result", "tool_use_id": "t", "content": "water"}]}]
    assert count() < count(system="be good") < count(system="be good", messages=turns)


def test_the_matched_stop_sequence_is_named(engine: SimEngine) -> None:
    word = texts(client(engine).messages.create(**GREEDY, **ASK))[0].split()[2]
    message = client(engine).messages.create(**GREEDY, **ASK, stop_sequences=[word])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)


def test_cached_input_is_not_counted_twice(engine: SimEngine) -> None:
    asked = {**ASK, "system": "the water of the land " * 20}
    client(engine).messages.create(**GREEDY, **asked)
    usage = client(engine).messages.create(**GREEDY, **asked).usage
    total = client(engine).messages.count_tokens(
        model="m", messages=asked["messages"], system=asked["system"]).input_tokens
    assert usage.cache_read_input_tokens and usage.cache_read_input_tokens % 16 == 0
    assert usage.cache_creation_input_tokens == 0
    assert usage.input_tokens + usage.cache_read_input_tokens == total


@pytest.mark.parametrize(("change", "status"), [
    ({"model": "x"}, 404), ({"temperature": -1}, 400),
    ({"messages": [{"role": "user", "content": "1 2 3 " * 20_000}]}, 400)])
def test_errors_have_anthropics_shape(
    engine: SimEngine, change: dict[str, Any], status: int
) -> None:
    reply = httpx.post(engine.url + "/v1/messages", json={**ASK, **change})
    body = reply.json()
    assert reply.status_code == status and body["type"] == "error"
    assert list(body["error"]) == ["type", "message"]


@pytest.mark.parametrize("change", [
    {"max_tokens": 0}, {"max_tokens": None}, {"messages": 3},
    {"messages": [{"role": "boss", "content": "x"}]}])
def test_what_does_not_fit_the_schema_is_told_in_openais_shape(
    engine: SimEngine, change: dict[str, Any]
) -> None:
    reply = httpx.post(engine.url + "/v1/messages", json={**ASK, **change})
    assert reply.status_code == 400 and reply.json()["error"]["type"] == "Bad Request"
