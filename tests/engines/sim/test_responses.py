"""The Responses interface: stored answers, continuation, background, events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from engines.sim.process import SimEngine


def client(engine: SimEngine) -> openai.OpenAI:
    return openai.OpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0)


def test_a_response_is_kept_and_can_be_continued(engine: SimEngine) -> None:
    api = client(engine)
    first = api.responses.create(model="m", input="How are you?", temperature=0)
    assert first.status == "completed" and first.id.startswith("resp_")
    kept = api.responses.retrieve(first.id)
    assert kept.output_text == first.output_text
    more = api.responses.create(model="m", input="And now?", previous_response_id=first.id)
    alone = api.responses.create(model="m", input="And now?")
    assert more.usage and alone.usage
    assert more.usage.input_tokens > alone.usage.input_tokens + 5


def test_whole_and_streamed_responses_agree(engine: SimEngine) -> None:
    api = client(engine)
    whole = api.responses.create(model="m", input="How are you?", temperature=0)
    with api.responses.stream(model="m", input="How are you?", temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", *["response.output_text.delta"] * 5,
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.completed"]
    assert api.responses.retrieve(final.id).status == "completed"


def test_reasoning_and_calls_are_items(sim: Callable[..., SimEngine]) -> None:
    engine = sim("m", "--tokens", 6, "--reasoning-tokens", 2)
    tool: Any = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    asked: Any = {"model": "m", "input": "go", "tools": [tool], "tool_choice": "required"}
    whole = client(engine).responses.create(**asked)
    with client(engine).responses.stream(**asked) as stream:
        streamed = stream.get_final_response()
    for response in (whole, streamed):
        assert [i.type for i in response.output] == ["reasoning", "function_call"]


def test_a_length_limit_makes_it_incomplete(engine: SimEngine) -> None:
    response = client(engine).responses.create(model="m", input="x", max_output_tokens=2)
    assert response.status == "incomplete" and response.incomplete_details
    assert response.incomplete_details.reason == "max_output_tokens"


def test_background_work_is_polled_and_cancelled(sim: Callable[..., SimEngine]) -> None:
    engine = sim("m", "--tokens", 1000, "--profile", "fixed:20")
    api = client(engine)
    response = api.responses.create(model="m", input="x", background=True)
    engine.wait_for(lambda s: s["running"] == 1)
    assert api.responses.retrieve(response.id).status == "in_progress"
    assert api.responses.cancel(response.id).status == "cancelled"
    engine.wait_for(lambda s: s["running"] == 0 and s["blocks_used"] == 0)
    assert api.responses.retrieve(response.id).status == "cancelled"


def test_background_work_completes(engine: SimEngine) -> None:
    api = client(engine)
    response = api.responses.create(model="m", input="x", background=True)
    engine.wait_for(lambda s: s["running"] == 0)
    assert api.responses.retrieve(response.id).status == "completed"
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous"):
        api.responses.cancel(response.id)


def test_another_engine_knows_nothing_of_it(sim: Callable[..., SimEngine]) -> None:
    here, there = sim("m"), sim("m")
    response = client(here).responses.create(model="m", input="x")
    for call in (client(there).responses.retrieve, client(there).responses.cancel):
        with pytest.raises(openai.NotFoundError, match="not found"):
            call(response.id)
    with pytest.raises(openai.NotFoundError):
        client(there).responses.create(model="m", input="y", previous_response_id=response.id)


@pytest.mark.parametrize("body", [{}, {"input": 5}, {"input": [5]}, {"input": "x", "stream": 1},
                                  {"input": "x", "background": True, "store": False}])
def test_bad_requests_are_refused(engine: SimEngine, body: dict[str, Any]) -> None:
    reply = httpx.post(engine.url + "/v1/responses", json=body)
    assert reply.status_code == 400 and reply.json()["error"]["code"] == 400
