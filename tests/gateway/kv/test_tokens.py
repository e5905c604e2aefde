"""Where the token ids of an upstream's prompts come from, and what happens where they cannot."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from harness import model_folder
from harness.kv import LANES, chat, receipt, settled

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
