"""Renders and requests recorded from transformers 5.19 and vLLM 0.32: every case, to the letter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engines.vllm.chat.chat import read_chat, render
from engines.vllm.chat.messages import conversation, without_developer
from engines.vllm.chat.model import ModelPrompt, Sources
from engines.vllm.chat.outcome import NotKnown, Texts, Unknown, Why
from engines.vllm.chat.request import read
from engines.vllm.chat.template import Call, Template
from engines.vllm.chat.tools import ToolSets

VECTORS = Path(__file__).resolve().parents[3] / "vectors"
TEMPLATES = VECTORS / "chat_templates"
NOW = datetime(2026, 1, 15, 10, 20, 30)

Case = dict[str, Any]


def lines(name: str) -> list[Case]:
    return [json.loads(line) for line in (VECTORS / name).read_bytes().split(b"\n") if line]


def ids(cases: list[Case], *names: str) -> Iterator[str]:
    return ("-".join(str(case[name]) for name in names) for case in cases)


def source(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_bytes().decode()


@cache
def facts() -> dict[str, Case]:
    return {case["template"]: case for case in lines("chat_templates/templates.jsonl")}


@cache
def template(name: str, tokens: tuple[tuple[str, str], ...]) -> Template:
    return Template(source(name), ToolSets(), lambda: NOW, dict(tokens))


@cache
def model(name: str) -> ModelPrompt:
    return ModelPrompt(Sources.of(source(name)), facts()[name]["special_tokens"], now=lambda: NOW)


RENDERS = lines("chat_renders.jsonl")


@pytest.mark.parametrize("case", RENDERS, ids=ids(RENDERS, "template", "case"))
def test_render(case: Case) -> None:
    made = template(case["template"], tuple(case["special_tokens"].items()))
    kwargs = dict(case["kwargs"])
    call = Call(
        case["messages"],
        case["tools"],
        None,
        kwargs.pop("add_generation_prompt", False),
        kwargs.pop("continue_final_message", False),
        kwargs,
    )
    if "expected_error" in case:
        with pytest.raises(NotKnown) as caught:
            made.render(call)
        assert caught.value.why is Why.REFUSED
        if case["expected_error"]["type"] == "TemplateError":
            assert case["expected_error"]["message"] in caught.value.reason
    else:
        assert made.render(call) == case["expected_text"]


FACTS = lines("chat_templates/templates.jsonl")


@pytest.mark.parametrize("case", FACTS, ids=ids(FACTS, "template"))
def test_what_a_template_wants(case: Case) -> None:
    made = template(case["template"], ())
    assert made.content_format == case["content_format"]
    assert made.knows_developer is case["developer_role"]
    assert sorted(made.variables) == sorted(case["variables"])


REQUESTS = lines("chat_requests.jsonl")


@pytest.mark.parametrize(
    "case", REQUESTS, ids=ids(REQUESTS, "case", "content_format", "developer_role")
)
def test_request(case: Case) -> None:
    """The input of the template; equality of the JSON text holds key order as well."""
    request = case["request"]
    some = model("llama-3")
    if "error" in case:
        answer = read("/v1/chat/completions", json.dumps(request).encode(), some)
        assert isinstance(answer, Unknown) and answer.why is Why.REFUSED
        return
    chat = read_chat(request, some, True)
    messages = conversation(chat.messages, case["content_format"])
    if not case["developer_role"]:
        messages = without_developer(messages)
    assert messages == case["messages"]
    if not case["developer_role"]:  # a consolidated message is rebuilt: its order is its own
        assert json.dumps(messages) == json.dumps(case["messages"])
    dumped = None if chat.tools is None else some.tool_sets.dump(chat.tools, True)
    assert json.dumps(dumped) == json.dumps(case["tools"])
    given = {**(chat.arguments or {}), **(chat.fields or {})}
    assert {k: v for k, v in given.items() if v is not None} == case["kwargs"]


BY_INPUT = {(c["case"], c["content_format"], c["developer_role"]): c["request"] for c in REQUESTS}
RENDERED = lines("chat_requests_rendered.jsonl")


@pytest.mark.parametrize("case", RENDERED, ids=ids(RENDERED, "template", "case"))
def test_request_to_text(case: Case) -> None:
    known = facts()[case["template"]]
    key = (case["case"], case["content_format"], known["developer_role"])
    request = BY_INPUT.get(key) or BY_INPUT[(*key[:2], False)]
    some = model(case["template"])
    answer = read("/v1/chat/completions", json.dumps(request).encode(), some)
    if "expected_error" in case:
        assert isinstance(answer, Unknown) and answer.why is Why.REFUSED
    else:
        assert answer == Texts((case["expected_text"],), False)
        assert render(read_chat(request, some, True), some) == case["expected_text"]
