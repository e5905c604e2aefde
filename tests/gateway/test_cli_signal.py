"""`-s`: the right signal to the right process, and a clear word where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import program as cli
from gateway.cli import signals as cli_signal

CONF = "pid run/k.pid;\nhttp { server { listen unix:/x; return 404; } }\n"
WAITER = """
import signal
wanted = {signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
print("up", flush=True)
print(signal.sigwait(wanted).name, flush=True)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    path = tmp_path / "k.conf"
    path.write_text(CONF)
    return path


@pytest.fixture
def waiter() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", WAITER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        process.kill()
        process.wait()


def run(file: Path, word: str) -> int:
    return cli.main(["-c", str(file), "-s", word])


@pytest.mark.parametrize(
    ("word", "name"),
    [("stop", "SIGTERM"), ("quit", "SIGQUIT"), ("reload", "SIGHUP"), ("reopen", "SIGUSR1")],
)
def test_signal_arrives(
    file: Path,
    waiter: subprocess.Popen[str],
    word: str,
    name: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (file.parent / "run" / "k.pid").write_text(f"{waiter.pid}\n")
    assert run(file, word) == 0
    assert waiter.communicate(timeout=60)[0] == f"{name}\n"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("text", ["", "x", "0", "1", "-1", "99999999999", "12 13", "²"])
def test_no_process_id_in_the_file(
    file: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (file.parent / "run" / "k.pid").write_text(text)
    assert run(file, "stop") == 1
    assert "holds no process id" in capfd.readouterr().err


def test_missing_file(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(file, "stop") == 1
    err = capfd.readouterr().err
    assert err.startswith(f"kvgate: there is no pid file {file.parent}/run/k.pid\n    hint: ")


def test_stale_file(
    file: Path, waiter: subprocess.Popen[str], capfd: pytest.CaptureFixture[str]
) -> None:
    waiter.kill()
    waiter.wait()
    (file.parent / "run" / "k.pid").write_text(str(waiter.pid))
    assert run(file, "reload") == 1
    assert f"no process {waiter.pid}" in capfd.readouterr().err


def test_process_of_somebody_else(
    file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(process: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    (file.parent / "run" / "k.pid").write_text("4242")
    assert run(file, "quit") == 1
    assert "process 4242 does not take signals from you" in capfd.readouterr().err


def test_no_pid_in_the_configuration(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_text(CONF.partition("\n")[2])
    assert run(file, "stop") == 1
    assert "names no pid file" in capfd.readouterr().err


def test_bad_configuration_sends_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_signal, "send", lambda *_: pytest.fail("a signal was sent"))
    file.write_text(CONF + "nothing;")
    assert run(file, "reload") == 1
    assert "unknown directive" in capfd.readouterr().err


def test_unknown_word(file: Path) -> None:
    with pytest.raises(SystemExit) as end:
        run(file, "relod")
    assert end.value.code == 2
