"""`record`: times, lengths and keyed hashes of requests, and never a word of a prompt."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from harness import waiting
from harness.kv import LANES, chat, settled

from engines.sim.tokens import WORDS
from gateway.cli.program import main
from gateway.logs import Writer
from gateway.planner.trace_files import rows
from gateway.trace_log import Keyed, TraceLog, TraceSink
from native._core import Prompt

BLOCK = 16


def words(seed: int, count: int) -> str:
    chance = random.Random(seed)
    return "".join(f" {chance.choice(WORDS)}" for _ in range(count))


@pytest.fixture
def recorded(sim, serve, model: Path, tmp_path: Path) -> Any:  # type: ignore[no-untyped-def]
    """`await recorded(lane)`: a gateway that records, and its file."""

    async def start(lane: str) -> tuple[Any, Path]:
        path = tmp_path / "requests.trace"
        (tmp_path / "secret").write_text("of-this-site\n")
        location = (
            f"record {path} secret=file:{tmp_path}/secret block={BLOCK} "
            "client=$http_x_user session=$http_x_session;"
        )
        gw = await serve(
            [sim("--tokenizer", model)], upstream=f"tokenizer {model};", lane=lane,
            location=location,
        )  # fmt: skip
        await settled(gw, "local")
        return gw, path

    return start


def lines(gw: Any, path: Path, count: int) -> list[dict[str, Any]]:
    """The file's lines, once it has so many."""
    for sink in gw.app.writer.sinks.values():
        sink.flush()
    waiting.until(lambda: path.read_bytes().count(b"\n") >= count, "lines of the recording")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("lane", LANES)
async def test_requests_are_recorded_without_their_text(recorded, lane: str) -> None:  # type: ignore[no-untyped-def]
    gw, path = await recorded(lane)
    shared = words(1, 60)
    users = ({"x-user": "anna", "x-session": "talk"}, {"x-user": "ben"}, {"x-user": "anna"})
    usages = []
    for number, headers in enumerate(users):
        body = chat(shared + words(10 + number, 30), max_tokens=3 + number)
        reply = await gw.client.post("/v1/chat/completions", json=body, headers=headers)
        usages.append(reply.json()["usage"])
    body = {**chat(shared), "stream": True, "max_tokens": 4}
    await gw.client.post("/v1/chat/completions", json=body, headers={"x-user": "ben"})

    head, *found = lines(gw, path, 5)
    assert head == {"kvgate_trace": 1, "block": BLOCK}
    for row, usage in zip(found, usages, strict=False):
        assert row["input_length"] == usage["prompt_tokens"]
        assert row["output_length"] == usage["completion_tokens"]
        assert len(row["hash_ids"]) == usage["prompt_tokens"] // BLOCK
    assert found[3]["output_length"] == 4
    # What prompts begin with is the same blocks; what follows is not.
    first, second = found[0]["hash_ids"], found[1]["hash_ids"]
    assert first[:3] == second[:3] and not set(first[4:]) & set(second[4:])
    assert found[0]["client"] == found[2]["client"] != found[1]["client"] == found[3]["client"]
    assert len(found[0]["session"]) == 8 and "session" not in found[1]
    assert [row["timestamp"] for row in found] == sorted(row["timestamp"] for row in found)

    text = path.read_text()
    for name in {name for row in (head, *found) for name in row}:
        text = text.replace(f'"{name}"', "")
    assert set(text) <= set('{}[]",:\n' + "0123456789abcdef"), "nothing but numbers is left"
    read = rows(path)
    assert (read.format, read.block, len(read.rows)) == ("kvgate", BLOCK, 4)


async def test_the_analysis_reads_what_was_recorded(  # type: ignore[no-untyped-def]
    recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    gw, path = await recorded("express")
    for number in range(12):
        await gw.client.post("/v1/chat/completions", json=chat(words(1, 60) + words(number, 20)))
    lines(gw, path, 13)
    capsys.readouterr()
    assert main(["workload", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "kvgate" and found["arrivals"]["requests"] == 12
    assert found["prefixes"]["endless_hit"] > 0.4


async def test_what_has_no_tokens_is_not_recorded(recorded) -> None:  # type: ignore[no-untyped-def]
    gw, path = await recorded("express")
    await gw.client.get("/v1/models")
    await gw.client.post("/v1/chat/completions", content=b"{no json")
    await gw.client.post("/v1/chat/completions", json=chat("the end"))
    found = lines(gw, path, 2)
    assert len(found) == 2 and len(found[1]["hash_ids"]) == found[1]["input_length"] // BLOCK


async def test_a_rotation_begins_a_file_that_can_be_read(recorded) -> None:  # type: ignore[no-untyped-def]
    gw, path = await recorded("express")
    await gw.client.post("/v1/chat/completions", json=chat(words(1, 40)))
    lines(gw, path, 2)
    path.rename(path.with_suffix(".old"))
    gw.app.writer.reopen()
    waiting.until(path.exists, "the new file")
    await gw.client.post("/v1/chat/completions", json=chat(words(1, 40)))
    lines(gw, path, 2)
    old, new = rows(path.with_suffix(".old")).rows, rows(path).rows
    assert len(old) == len(new) == 1 and old[0].blocks[:3] == new[0].blocks[:3]


async def test_what_cannot_be_written_in_time_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.logs.PENDING_BYTES_MAX", 4096)
    writer = Writer()
    sink = writer.of(str(tmp_path / "t"), TraceSink)
    monkeypatch.setattr(writer, "_begin", lambda: None)  # the thread does not come to it
    prompt = Prompt.of_list([1] * 2000)
    for _ in range(3):
        sink.put((0.0, 2000, 1, prompt, "", ""), None)  # type: ignore[arg-type]
        sink.flush()
    assert writer.dropped(TraceSink) == 2 and sink.handed < 2 * 8400


def test_hashes_are_those_of_a_site() -> None:
    prompt = Prompt.of_list(list(range(100)))
    here, there = Keyed("a"), Keyed("b")
    assert here.blocks(prompt, 16) == Keyed("a").blocks(prompt, 16)
    assert len(set(here.blocks(prompt, 16)) | set(there.blocks(prompt, 16))) == 12
    assert here.client("x") != there.client("x") and here.client("x") != here.session("x")


async def test_a_running_gateway_is_planned_for(  # type: ignore[no-untyped-def]
    recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gw, path = await recorded("express")
    for number in range(12):
        await gw.client.post("/v1/chat/completions", json=chat(words(1, 60) + words(number, 20)))
    lines(gw, path, 13)
    conf = tmp_path / "kvgate.conf"
    conf.write_text(
        "http { upstream sim { server 127.0.0.1:1; kv_aware; slo ttft=2s tpot=50ms;"
        " profile h100-8b-tp1 b=0.05; kv_capacity 20000; }"
        f" server {{ listen 8080; location / {{ proxy_pass http://sim; record {path}"
        f" secret=file:{tmp_path}/secret block={BLOCK}; }} }}"
        f" server {{ listen unix:{tmp_path}/admin0.sock; location / {{ admin; }} }} }}"
    )
    capsys.readouterr()
    asked = ["--live", "-c", str(conf), "--json"]
    assert await asyncio.to_thread(main, ["plan", "fit", *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["now"]["layout"] == "1 aggregated, chunk 8192" and found["requests"] == 12
    assert (found["goal"]["ttft_s"], found["goal"]["tpot_s"]) == (2.0, 0.05)
    assert found["means"]["constants"] == [["b", 0.05]]
    assert str(path) in found["measured"][0] and "profile line" in str(found["measured"])
    assert await asyncio.to_thread(main, ["workload", *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["arrivals"]["requests"] == 12
    memory = found["tiers"][0]["tokens"]
    assert memory == (await gw.status())["engines"][0]["kv"]["capacity_tokens"]
    assert str(path) in found["live"]["measured"][0]


async def test_several_workers_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "t"
    writers = [Writer(), Writer()]
    sinks = [writer.of(str(path), TraceSink) for writer in writers]
    for sink in sinks:
        sink.begin(16)
        log = TraceLog(sink, Keyed("a"), 16, (lambda _: "", lambda _: ""))
        sink.put((1.0, 40, 2, Prompt.of_list(list(range(40))), "", ""), log)
    for writer in writers:
        writer.close()
    found = rows(path).rows
    assert len(found) == 2 and found[0].blocks[:2] == found[1].blocks[:2]
    assert path.read_bytes().startswith(b'{"kvgate_trace":1,"block":16}\n')
