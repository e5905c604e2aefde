"""Logs: one line each, bounded, reopened on demand, and silent about secrets."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest
from harness import waiting

from gateway import logs
from gateway.log_lines import NOTICE
from gateway.logs import Sink, Writer, log, open_error_log


@pytest.fixture
def quiet_log():  # type: ignore[no-untyped-def]
    """Gives the logger back as it was."""
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    for handler in log.handlers[:]:
        handler.close()
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)


def write(sink: Sink, line: str) -> None:
    if sink.buffer.put(line.encode()):
        sink.filled()


async def test_lines_arrive_and_a_rotation_loses_none(tmp_path: Path) -> None:
    writer = Writer()
    path = tmp_path / "access.log"
    sink = writer.sink(str(path))
    assert writer.sink(str(path)) is sink
    write(sink, "one")
    sink.flush()
    waiting.until(lambda: path.read_text() == "one\n", "first line")
    path.rename(tmp_path / "access.log.1")
    write(sink, "two")
    writer.reopen()
    write(sink, "three")
    writer.close()
    assert (tmp_path / "access.log.1").read_text() == "one\ntwo\n"
    assert path.read_text() == "three\n"
    assert writer.dropped(Sink) == 0


async def test_a_small_buffer_is_written_after_a_second_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert logs.FLUSH_S <= 1.0
    monkeypatch.setattr(logs, "FLUSH_S", 0.01)
    writer = Writer()
    sink = writer.sink(str(tmp_path / "a.log"))
    write(sink, "x")
    import asyncio

    deadline = time.monotonic() + 5
    while not (tmp_path / "a.log").read_text():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    writer.close()


async def test_a_blocked_pipe_costs_lines_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PENDING_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(logs, "FLUSH_BYTES", 1 << 16)
    reader, full = os.pipe()
    writer = Writer()
    sink = Sink("stderr", writer)
    sink.fd = full
    writer.sinks[Sink, "pipe"] = sink
    start = time.monotonic()
    for _ in range(40_000):
        write(sink, "x" * 99)
    assert time.monotonic() - start < 2.0
    sink.flush()
    assert writer.dropped(Sink) > 20_000 and sink.handed < 3 << 20
    os.close(reader)
    writer.close(0.5)
    os.close(full)


async def test_a_full_disk_costs_lines_and_never_joins_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some bytes of a write still fit: what they cut is not a line, and the next one is."""
    room = [0]

    def short(fd: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = min(room[0], len(data))
        room[0] -= taken
        return real(fd, data[:taken])

    real = os.write
    monkeypatch.setattr(os, "write", short)
    writer = Writer()
    path = tmp_path / "a.log"
    sink = writer.sink(str(path))

    def hand(line: str, space: int) -> None:
        room[0] = space
        write(sink, line)
        sink.flush()
        waiting.until(lambda: sink.written == sink.handed, "the writer")

    hand("one\ntwo\nthree", 6)  # "tw" is all of the second line that there is room for
    assert (sink.dropped, sink.torn) == (2, True)
    hand("four", 0)
    assert (sink.dropped, sink.torn) == (3, True)
    hand("five", 99)
    writer.close()
    assert path.read_text() == "one\ntw\nfive\n" and writer.dropped(Sink) == 3


async def test_a_buffer_says_when_it_is_to_be_looked_at(tmp_path: Path) -> None:
    """Of a thousand lines two or three tell: the others cost no call."""
    writer = Writer()
    sink = writer.sink(str(tmp_path / "a.log"), buffer=1000, flush_s=60.0)
    told = []
    for _ in range(100):
        if sink.buffer.put(b"x" * 99):
            told.append(sink.size)
            sink.filled()
    assert told == [100, 1000] * 10
    writer.close()
    assert (tmp_path / "a.log").stat().st_size == 10_000


def test_error_lines_look_like_nginxs(tmp_path: Path, quiet_log: None) -> None:
    path = tmp_path / "error.log"
    open_error_log(str(path), "notice")
    log.info("not shown")
    log.log(NOTICE, "shown %d", 1)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("fault")
    log.handlers[0].close()  # what waits is written
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    assert lines[0].endswith(f"[notice] {os.getpid()}#0: shown 1") and lines[0][4] == "/"
    assert "[error]" in lines[1] and "ValueError: two\\n lines" in lines[1]


def test_levels_are_nginxs_in_its_order() -> None:
    numbers = list(logs.LEVELS.values())
    assert numbers == sorted(numbers) and len(set(numbers)) == 8
    assert next(iter(logs.LEVELS)) == "debug" and logs.LEVELS["error"] == logging.ERROR


async def test_no_credential_reaches_a_log(gateway, engine, caplog) -> None:  # type: ignore[no-untyped-def]
    """EA#2508: a credential in the debug log."""
    caplog.set_level(logging.DEBUG)
    one = await engine(lambda *_: (502, {}, b"{}"))
    gw = await gateway(
        f"upstream main {{ server {one.address}; api_key own-sekret; }}"
        "server { listen 127.0.0.1:0; location / { proxy_pass http://main; } }"
    )
    headers = {"authorization": "Bearer user-sekret"}
    await gw.client.post("/v1/completions", json={"prompt": "prompt-sekret"}, headers=headers)
    await gw.client.post("/v1/completions", content=b'{"a":prompt-sekret', headers=headers)
    ours = [r for r in caplog.records if not r.name.startswith(("httpx", "httpcore", "asyncio"))]
    for text in (*(r.getMessage() for r in ours), str(gw.lines())):
        assert "sekret" not in text


async def test_a_log_that_no_configuration_names_is_closed(tmp_path: Path) -> None:
    """Requests of the former one still get their lines in; a path that comes back is a new sink."""
    writer = Writer()
    kept, gone = writer.sink(str(tmp_path / "kept")), writer.sink(str(tmp_path / "gone"))
    write(gone, "one")
    fd = gone.fd
    writer.keep({kept})
    waiting.until(lambda: gone.fd == -1, "the file to be closed")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    write(gone, "two")
    gone.flush()
    write(gone, "three")
    write(kept, "x")
    again = writer.sink(str(tmp_path / "gone"))
    assert again is not gone
    write(again, "four")
    writer.close()
    assert sorted((tmp_path / "gone").read_text().split()) == ["four", "one", "three", "two"]
    assert (tmp_path / "kept").read_text() == "x\n" and writer.dropped(Sink) == 0


def test_a_log_that_nothing_was_written_to_is_opened_again_too(tmp_path: Path) -> None:
    writer = Writer()
    sink = writer.sink(str(tmp_path / "a.log"))
    (tmp_path / "a.log").rename(tmp_path / "a.old")
    writer.reopen()
    old = (tmp_path / "a.old").stat().st_ino
    waiting.until(lambda: os.fstat(sink.fd).st_ino != old, "the new file")
    assert (tmp_path / "a.log").exists()
    writer.close()
