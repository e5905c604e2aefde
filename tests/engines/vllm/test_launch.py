"""Starting and stopping an engine, with a program that behaves as a vLLM server can."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.vllm.launch import ChildServer, LaunchError
from engines.vllm.spec import Command

FAKE = Path(__file__).with_name("fake_vllm.py")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[ChildServer]]:
    running: list[ChildServer] = []
    yield running
    for engine in running:
        engine.kill()


def start(mode: str, tmp_path: Path, started: list[ChildServer]) -> ChildServer:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = (sys.executable, str(FAKE), "serve", mode, "--port", str(port))
    engine = ChildServer.start(
        Command(argv, (("FAKE", "1"),)), f"http://127.0.0.1:{port}", tmp_path / "engine.log"
    )
    started.append(engine)
    return engine


def child_of(engine: ChildServer) -> int:
    found = re.search(r"^child (\d+)$", engine.log.read_text(), re.MULTILINE)
    assert found, engine.log.read_text()
    return int(found[1])


def running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


def test_ready_then_stopped_with_all_its_processes(
    tmp_path: Path, started: list[ChildServer]
) -> None:
    engine = start("ready", tmp_path, started)
    assert 0 < engine.wait_ready(timeout_s=20) < 20
    child = child_of(engine)
    assert engine.alive
    assert running(child)
    assert os.getpgid(child) == engine.pid != os.getpgid(0)
    assert engine.stop(grace_s=10) == -15
    assert not engine.alive
    assert not running(child)
    assert engine.stop() == -15  # again is harmless


def test_one_that_ignores_term_is_killed_with_its_children(
    tmp_path: Path, started: list[ChildServer]
) -> None:
    engine = start("stubborn", tmp_path, started)
    engine.wait_ready(timeout_s=20)
    child = child_of(engine)
    before_s = time.monotonic()
    assert engine.stop(grace_s=0.5) == -9
    assert 0.5 <= time.monotonic() - before_s < 5
    assert not running(child)


def test_a_leader_that_crashed_leaves_no_child_behind(
    tmp_path: Path, started: list[ChildServer]
) -> None:
    engine = start("ready", tmp_path, started)
    engine.wait_ready(timeout_s=20)
    child = child_of(engine)
    os.kill(engine.pid, 9)
    assert engine.stop(grace_s=5) == -9
    assert not running(child)


def test_death_while_starting_is_told_at_once_with_the_log(
    tmp_path: Path, started: list[ChildServer]
) -> None:
    engine = start("dies", tmp_path, started)
    with pytest.raises(LaunchError) as caught:
        engine.wait_ready(timeout_s=60)
    text = str(caught.value)
    assert "ended with status 3 while starting" in text
    assert str(engine.log) in text
    assert text.endswith("RuntimeError: no such model")


def test_not_ready_in_time_is_told_and_the_engine_stopped(
    tmp_path: Path, started: list[ChildServer]
) -> None:
    engine = start("never", tmp_path, started)
    with pytest.raises(LaunchError, match="is not ready after 1 s"):
        engine.wait_ready(timeout_s=1)
    assert not engine.alive


def test_progress_shows_the_last_line_of_the_log(
    tmp_path: Path, started: list[ChildServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.vllm.launch.PROGRESS_S", 0.2)
    engine = start("never", tmp_path, started)
    seen: list[tuple[float, str]] = []
    with pytest.raises(LaunchError):
        engine.wait_ready(
            timeout_s=2, progress=lambda waited_s, line: seen.append((waited_s, line))
        )
    assert seen
    assert re.fullmatch(r"child \d+", seen[-1][1])


def test_drain_waits_for_the_last_request(tmp_path: Path, started: list[ChildServer]) -> None:
    engine = start("draining", tmp_path, started)
    engine.wait_ready(timeout_s=20)
    assert engine.drain(timeout_s=0) is False
    assert engine.drain(timeout_s=20) is True


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"cannot run `/no/such/vllm`: .*\nhint: "):
        ChildServer.start(
            Command(("/no/such/vllm", "serve"), ()), "http://127.0.0.1:1", tmp_path / "log"
        )
