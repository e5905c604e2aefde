"""Engines and folders whose tokenizer changes while the gateway runs."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness import model_folder
from harness.kv import LANES, chat, receipt, settled, until
from harness.kv_load import predicted

from engines.sim.process import SimEngine
from gateway.kv import trust
from gateway.kv.vocabulary import Vocabulary

URL = "/v1/chat/completions"
CHAT = chat(" the of and to in is" * 9)
OTHER = model_folder.TEMPLATE.replace("<|start|>assistant", "<|start|>the assistant says")
EVENTS = json.dumps({"enable_kv_cache_events": True, "endpoint": "tcp://*:0",
                     "replay_endpoint": "tcp://*:0"})  # fmt: skip


@pytest.fixture
def at() -> Iterator[Callable[..., SimEngine]]:
    """`at(port, *args)`: an engine at a port, 0 = any."""
    with ExitStack() as stack:

        def start(port: int, *args: object) -> SimEngine:
            wanted = ["--port", port, "--enable-prompt-tokens-details", *args]
            return stack.enter_context(SimEngine(*wanted, thread=True))

        yield start


@pytest.mark.parametrize("lane", LANES)
async def test_an_engine_that_comes_back_with_another_template_is_found_out(  # type: ignore[no-untyped-def]
    serve, at, model: Path, tmp_path: Path, lane: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvgate")
    other = model_folder.write(tmp_path / "o", template=OTHER)
    one = at(0, "--tokenizer", model)
    gw = await serve([one], upstream=f"tokenizer {model};", lane=lane)
    await settled(gw, "local")
    port = one.port
    one.stop()
    at(port, "--tokenizer", other)

    async def ask() -> Any:
        reply = await gw.client.post(URL, json=CHAT)
        assert reply.status_code == 200
        return reply

    reply = await ask()
    assert int(receipt(reply)["prompt-tokens"]) != reply.json()["usage"]["prompt_tokens"]
    await ask()
    assert gw.app.pipeline.tokens.by_upstream["sim"].state == "local", "twice proves nothing yet"
    await ask()
    source = await settled(gw, "engine")
    assert source.vocabulary is None and source.verdict == "differs"
    reply = await ask()
    assert receipt(reply)["prompt"] == "tokenize"
    assert int(receipt(reply)["prompt-tokens"]) == reply.json()["usage"]["prompt_tokens"]
    said = [text for text in caplog.messages if f"is not what engine {one.address} uses" in text]
    assert len(said) == 1 and "differs at token" in said[0]


async def test_an_engine_whose_ids_alone_are_others_is_found_out_by_its_hits(  # type: ignore[no-untyped-def]
    serve, at, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many tokens as here, but others: nothing that it stores is ever expected."""
    monkeypatch.setattr(trust, "ENOUGH", 4)
    other = model_folder.write(tmp_path / "o", shift=3)
    one = at(0, "--tokenizer", model, "--kv-events-config", EVENTS)
    gw = await serve([one], upstream=f"tokenizer {model};")
    await settled(gw, "local")
    (engine,) = gw.app.table.groups["sim"].engines
    port = one.port
    one.stop()
    at(port, "--tokenizer", other, "--kv-events-config", EVENTS)
    await until(lambda: gw.app.caches.state(engine)[0] == "exact", "the new one to be followed")
    for _ in range(2):
        for n in range(6):
            await gw.client.post(URL, json=chat(f"{n}" + " the of and to in" * 20))
        await until(lambda: not predicted(gw), "what was sent to count no more")
    source = await settled(gw, "engine")
    assert source.verdict == "differs"


async def test_one_odd_count_is_no_doubt(serve, at, model: Path) -> None:  # type: ignore[no-untyped-def]
    one = at(0, "--tokenizer", model)
    gw = await serve([one], upstream=f"tokenizer {model};")
    source = await settled(gw, "local")
    (engine,) = gw.app.table.groups["sim"].engines
    for there in (101, 101, 100, 101, 101, 100):
        source.counted(engine, 100, there)
    assert not source.doubt.is_set()
    source.suspect(engine)
    await until(lambda: source.doubted is None, "it to be compared again")
    assert (source.state, source.verdict) == ("local", "agrees")
    for _ in range(9):
        source.counted(engine, 100, 101)
    assert not source.doubt.is_set(), "it has just been compared"


async def test_a_folder_that_is_deleted_or_replaced_changes_nothing(  # type: ignore[no-untyped-def]
    serve, at, model: Path, tmp_path: Path
) -> None:
    """What was loaded is in memory, and agrees with the engine. A reload looks again."""
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    gw = await serve([at(0, "--tokenizer", model)], upstream=f"tokenizer {folder};")
    await settled(gw, "local")
    for change in (lambda: shutil.rmtree(folder), lambda: model_folder.write(folder, shift=7)):
        change()
        reply = await gw.client.post(URL, json=CHAT)
        assert receipt(reply)["prompt"] == "local"
        assert int(receipt(reply)["prompt-tokens"]) == reply.json()["usage"]["prompt_tokens"]


async def test_a_request_that_is_being_read_keeps_what_it_began_with(  # type: ignore[no-untyped-def]
    serve, at, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer is given up while a thread reads a large prompt with it."""
    one = at(0, "--tokenizer", model, "--max-model-len", 200_000)
    gw = await serve([one], upstream=f"tokenizer {model};")
    source = await settled(gw, "local")
    read = Vocabulary.read

    def slow(self: Vocabulary, path: bytes, body: bytes) -> Any:
        source.vocabulary = None
        return read(self, path, body)

    monkeypatch.setattr(Vocabulary, "read", slow)
    reply = await gw.client.post(URL, json=chat(" the" * 30_000))
    assert (reply.status_code, receipt(reply)["prompt"]) == (200, "local")
