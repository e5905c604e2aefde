"""Where the token ids of an upstream's prompts come from, and what happens where they cannot."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from harness import model_folder
from harness.kv import LANES, chat, receipt, settled

from gateway.kv.vocabulary import Vocabulary

CHAT = chat("the of and to in is" * 9)


@pytest.mark.parametrize("lane", LANES)
async def test_a_folder_that_agrees_with_the_engine_is_used(  # type: ignore[no-untyped-def]
    serve, sim, model: Path, lane: str
) -> None:
    one = sim("--tokenizer", model)
    gw = await serve([one], upstream=f"tokenizer {model};", lane=lane)
    source = await settled(gw, "local")
    assert source.verdict == "agrees" and source.vocabulary is not None
    reply = await gw.client.post("/v1/chat/completions", json=CHAT)
    seen = receipt(reply)
    assert (seen["policy"], seen["prompt"]) == ("kv", "local")
    assert int(seen["prompt-tokens"]) == reply.json()["usage"]["prompt_tokens"]


async def test_auto_finds_the_folder_that_the_engine_names(  # type: ignore[no-untyped-def]
    serve, sim, model: Path
) -> None:
    one = sim(model, "--served-model-name", "sim", "--tokenizer", model)
    gw = await serve([one], upstream="tokenizer auto;")
    source = await settled(gw, "local")
    assert source.folder == str(model)


async def test_auto_finds_a_name_in_the_cache_of_models(  # type: ignore[no-untyped-def]
    serve, sim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    home = tmp_path / "hf" / "hub" / "models--org--small"
    folder = model_folder.write(home / "snapshots" / "abc123")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc123")
    one = sim("org/small", "--served-model-name", "sim", "--tokenizer", folder)
    gw = await serve([one], upstream="tokenizer auto;")
    assert (await settled(gw, "local")).folder == str(folder)


@pytest.mark.parametrize("lane", LANES)
async def test_what_is_not_on_this_machine_is_asked_of_the_engine(  # type: ignore[no-untyped-def]
    serve, sim, lane: str
) -> None:
    one = sim("no/such-model-here", "--served-model-name", "sim")
    gw = await serve([one], upstream="tokenizer auto;", lane=lane)
    source = await settled(gw, "engine")
    assert "no/such-model-here" in source.why
    reply = await gw.client.post("/v1/chat/completions", json=CHAT)
    seen = receipt(reply)
    assert (seen["policy"], seen["prompt"]) == ("kv", "tokenize")
    assert int(seen["prompt-tokens"]) == reply.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("how", ["ids", "template"])
async def test_a_tokenizer_that_differs_is_never_used(  # type: ignore[no-untyped-def]
    serve, sim, model: Path, tmp_path: Path, how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "kvgate")
    template = model_folder.TEMPLATE.replace("<|start|>tools", "<|start|>functions")
    other = (
        model_folder.write(tmp_path / "o", shift=3)
        if how == "ids"
        else model_folder.write(tmp_path / "o", template=template)
    )
    one = sim("--tokenizer", model)
    gw = await serve([one], upstream=f"tokenizer {other};")
    source = await settled(gw, "engine")
    assert source.verdict == "differs" and source.vocabulary is None
    assert "differs at token" in source.why
    reply = await gw.client.post("/v1/chat/completions", json=CHAT)
    assert receipt(reply)["prompt"] == "tokenize"
    said = [text for text in caplog.messages if "is not what the engines use" in text]
    assert len(said) == 1
    shown = (await gw.status())["tokenizer"]
    assert (shown["state"], shown["compared"]) == ("engine", "differs")
    page = (await gw.admin.get("/metrics")).text
    assert 'kvgate_tokenizer_agrees{upstream="sim"} 0.0' in page


@pytest.mark.parametrize("tokens", ["local", "off"])
async def test_large_prompts_are_read_beside_the_event_loop(  # type: ignore[no-untyped-def]
    serve, sim, model: Path, tokens: str
) -> None:
    one = sim("--tokenizer", model, "--max-model-len", 200_000)
    source = f"tokenizer {model};" if tokens == "local" else "tokenizer off;"
    gw = await serve([one], upstream=source)
    await settled(gw, "local" if tokens == "local" else "bytes")
    for size, lane in ((400, "express"), (30_000, "starlette")):
        reply = await gw.client.post("/v1/chat/completions", json=chat(" the" * size))
        seen = receipt(reply)
        assert seen["prompt"] == ("local" if tokens == "local" else "bytes")
        if tokens == "local":
            assert int(seen["prompt-tokens"]) == reply.json()["usage"]["prompt_tokens"] > size
            assert gw.running.lines()[-1]["lane"] == lane


async def test_a_long_conversations_next_turn_is_quick(serve, sim, model: Path) -> None:  # type: ignore[no-untyped-def]
    """What the tokenizer has seen before needs no thread."""
    one = sim("--tokenizer", model, "--max-model-len", 200_000)
    gw = await serve([one], upstream=f"tokenizer {model};")
    await settled(gw, "local")
    body = chat(" the of and" * 4000)
    for lane in ("starlette", "express"):
        reply = await gw.client.post("/v1/chat/completions", json=body)
        assert receipt(reply)["prompt"] == "local"
        assert gw.running.lines()[-1]["lane"] == lane
        body["messages"] += [{"role": "assistant", "content": " so"},
                             {"role": "user", "content": " and then"}]  # fmt: skip


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("source", ["remote", "off"])
async def test_without_events_decisions_are_followed(serve, sim, lane: str, source: str) -> None:  # type: ignore[no-untyped-def]
    gw = await serve([sim(), sim()], upstream=f"tokenizer {source};", lane=lane)
    await settled(gw, "engine" if source == "remote" else "bytes")
    body = chat(" the of and to in is that it" * 60)
    first = receipt(await gw.client.post("/v1/chat/completions", json=body))
    reply = await gw.client.post("/v1/chat/completions", json=body)
    seen = receipt(reply)
    assert (seen["engine"], seen["trust"]) == (first["engine"], "approximate")
    assert int(seen["matched-tokens"]) > 0.9 * int(seen["prompt-tokens"]) - 16
    if source == "remote":
        found = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert int(seen["matched-tokens"]) == found


async def test_a_broken_tokenizer_is_said_and_engines_are_asked(  # type: ignore[no-untyped-def]
    serve, sim, model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text('{"model": 7}')
    gw = await serve([sim("--tokenizer", model)], upstream=f"tokenizer {broken};")
    source = await settled(gw, "engine")
    assert str(broken) in source.why
    reply = await gw.client.post("/v1/chat/completions", json=CHAT)
    assert receipt(reply)["prompt"] == "tokenize"


async def test_requests_are_served_while_nothing_is_loaded_yet(  # type: ignore[no-untyped-def]
    serve, sim, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    load = Vocabulary.load

    def slow(path: str, chat_template: str) -> Vocabulary:
        go.wait(20)
        return load(path, chat_template)

    monkeypatch.setattr(Vocabulary, "load", slow)
    gw = await serve([sim("--tokenizer", model)], upstream=f"tokenizer {model};")
    try:
        reply = await gw.client.post("/v1/chat/completions", json=CHAT)
        assert (reply.status_code, receipt(reply)["prompt"]) == (200, "bytes")
        assert gw.app.memory.kv.count("reason/loading") == 1
    finally:
        go.set()
    await settled(gw, "local")
    assert receipt(await gw.client.post("/v1/chat/completions", json=CHAT))["prompt"] == "local"


@pytest.mark.parametrize("source", ["local", "remote"])
async def test_behind_another_server_it_is_the_same(serve, sim, model: Path, source: str) -> None:  # type: ignore[no-untyped-def]
    tokenizer = str(model) if source == "local" else "remote"
    gw = await serve([sim("--tokenizer", model)], upstream=f"tokenizer {tokenizer};")
    await settled(gw, "local" if source == "local" else "engine")
    for size in (10, 30_000):
        reply = await gw.running.memory.post("/v1/chat/completions", json=chat(" the" * size))
        assert receipt(reply)["prompt"] == ("local" if source == "local" else "tokenize")
