"""Clients that people use, unchanged, pointed at the gateway: only their base URL differs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
from e2e import cases
from e2e.fleet import ALIAS, CACHE, MODEL, Engine, Lane
from e2e.payload import stream_of

ASK = cases.ASK
LIMITS = {"temperature": 0, "max_tokens": 12}
# The client has no temperature any more, the engine still has.
CLAUDE_LIMITS = {"extra_body": {"temperature": 0}, "max_tokens": 12}
NODE_PACKAGE = "openai@6.30.1"


@pytest.fixture
def expected(engines: list[Engine], http: httpx.Client) -> str:
    """What the engine itself answers."""
    path, body = cases.chat()
    reply = http.post(engines[0].base_url + path, json=body).json()
    text = reply["choices"][0]["message"]["content"]
    assert text
    return str(text)


@pytest.fixture
def client(lane: Lane) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{lane.base_url}/v1", api_key="unused", max_retries=0)


# ---- openai, Python


def test_openai_chat(client: openai.OpenAI, expected: str) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=ASK, **LIMITS)
    assert reply.choices[0].message.content == expected
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply._request_id  # the header by which a user reports a problem


def test_openai_chat_stream(client: openai.OpenAI, expected: str) -> None:
    pieces, usage = [], None
    with client.chat.completions.create(
        model=ALIAS, messages=ASK, stream=True, stream_options={"include_usage": True}, **LIMITS
    ) as stream:
        for chunk in stream:
            assert chunk.model == ALIAS
            usage = chunk.usage or usage
            pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == expected
    assert usage is not None and usage.completion_tokens > 0


def test_openai_tool_call(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        tools=[cases.TOOL],
        tool_choice=cases.CALL,
        temperature=0,
        max_tokens=60,
    )
    (call,) = reply.choices[0].message.tool_calls or []
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)


def test_openai_completion_and_models(client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt="Once upon a time", **LIMITS)
    assert reply.choices[0].text
    assert MODEL in [model.id for model in client.models.list()]


def test_openai_response(client: openai.OpenAI) -> None:
    reply = client.responses.create(
        model=MODEL, input="Name a fruit.", temperature=0, max_output_tokens=12
    )
    assert reply.output_text
    with client.responses.stream(
        model=MODEL, input="Name a fruit.", temperature=0, max_output_tokens=12
    ) as stream:
        streamed = "".join(
            event.delta for event in stream if event.type == "response.output_text.delta"
        )
    assert streamed == reply.output_text


def test_openai_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="no-such-model", messages=ASK)
    assert missing.value.param == "model"
    assert "no-such-model" in str(missing.value)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=-1)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=MODEL, prompt="word " * 4000)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=ASK, temperature=-3, stream=True)


async def test_openai_async(lane: Lane, expected: str) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{lane.base_url}/v1", api_key="unused", max_retries=0
    ) as client:
        reply = await client.chat.completions.create(model=MODEL, messages=ASK, **LIMITS)
        assert reply.choices[0].message.content == expected
        stream = await client.chat.completions.create(
            model=MODEL, messages=ASK, stream=True, **LIMITS
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == expected


# ---- anthropic, Python


@pytest.fixture
def claude(lane: Lane) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=lane.base_url, api_key="unused", max_retries=0)


def test_anthropic_message(claude: anthropic.Anthropic, expected: str) -> None:
    reply = claude.messages.create(model=MODEL, messages=ASK, **CLAUDE_LIMITS)
    assert reply.content[0].type == "text"
    assert reply.content[0].text == expected
    assert reply.stop_reason in ("end_turn", "max_tokens")
    assert reply.usage.output_tokens > 0


def test_anthropic_stream(claude: anthropic.Anthropic, expected: str) -> None:
    with claude.messages.stream(model=ALIAS, messages=ASK, **CLAUDE_LIMITS) as stream:
        assert "".join(stream.text_stream) == expected
        final = stream.get_final_message()
    assert final.model == ALIAS
    assert final.stop_reason in ("end_turn", "max_tokens")


def test_anthropic_counts_and_errors(claude: anthropic.Anthropic) -> None:
    assert claude.messages.count_tokens(model=MODEL, messages=ASK).input_tokens > 5
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="no-such-model", messages=ASK, max_tokens=5)


# ---- openai, Node


@pytest.fixture(scope="session")
def node_modules() -> Path:
    if os.environ.get("E2E_NODE") == "skip":
        pytest.skip("E2E_NODE=skip")
    assert shutil.which("npm"), "needs node and npm; E2E_NODE=skip leaves this client out"
    folder = CACHE / f"node-{NODE_PACKAGE.replace('@', '-')}"
    if not (folder / ".complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", NODE_PACKAGE],
            check=True,
            timeout=300,
            stdout=subprocess.DEVNULL,
        )
        (folder / ".complete").touch()
    return folder


def test_openai_node(lane: Lane, node_modules: Path, expected: str, tmp_path: Path) -> None:
    # Modules are looked up from where the script lies.
    script = node_modules / f"{lane.name}.mjs"
    script.write_text(Path(__file__).with_name("openai_client.mjs").read_text())
    done = subprocess.run(
        ["node", str(script), f"{lane.base_url}/v1", MODEL, json.dumps(ASK)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["whole"] == expected
    assert found["streamed"] == expected
    assert found["usage"] > 0
    assert found["missing"] == {"name": "NotFoundError", "status": 404, "param": "model"}
    assert MODEL in found["models"]


# ---- curl


def test_curl_shows_tokens_as_they_come(lane: Lane, engines: list[Engine]) -> None:
    path, body = cases.chat(stream=True, max_tokens=80, ignore_eos=True)
    arrived: list[float] = []
    lines: list[str] = []
    started_s = time.monotonic()
    with subprocess.Popen(
        ["curl", "-sS", "-N", "--fail-with-body", "-H", "content-type: application/json",
         "-d", json.dumps(body), lane.base_url + path],
        stdout=subprocess.PIPE, text=True,
    ) as curl:  # fmt: skip
        assert curl.stdout is not None
        for line in curl.stdout:
            arrived.append(time.monotonic() - started_s)
            lines.append(line.rstrip("\n"))
    assert curl.returncode == 0
    stream = stream_of(lines)
    assert stream.text
    assert stream.last == "[DONE]"
    # Not held back: the first event came in the first half of the time the whole took.
    assert arrived[0] < arrived[-1] / 2
