"""`kvgate demo` as a newcomer runs it: it answers, says the route, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
from harness import waiting
from harness.gateway import ROOT, free_ports


def demo(folder: Path, *argv: str, **environ: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environ}
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", "demo", *argv],
        env={**env, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def test_every_question_is_answered_and_its_engine_named(tmp_path: Path) -> None:
    out, err = demo(tmp_path, "--port", str(free_ports(1)[0])).communicate(timeout=90)
    assert err == ""
    engines = set(re.findall(r"engine +http://(\S+)", out))
    assert len(engines) == 2
    routes = re.findall(r"  from (\S+): (\d+) tokens in \d+ ms", out)
    assert {address for address, _ in routes} <= engines
    assert all(int(tokens) > 1 for _, tokens in routes)
    assert len(routes) == out.count("\n> ") == 4
    line = r"prompt of (\d+) tokens, (\d+) expected in its cache \((\w+)\), (\d+) found"
    prompts = re.findall(line, out)
    for (first, _, _, _), (second, expected, _, found) in (prompts[:2], prompts[2:]):
        assert int(first) - 16 < int(expected) <= int(found) < int(second)
    assert "models: sim, gpt-4o-mini" in out
    assert "HTTP 404, The model `no-such-model`" in out
    assert list(tmp_path.iterdir()) == []


def test_kept_running_until_told_to_stop(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    process = demo(tmp_path, "--keep", "--port", str(port))
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("running until Ctrl-C"):
                break
        assert httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 200
        started = children(process.pid)
        assert len(started) == 3
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert rest.endswith("stopping\n")
    assert err == ""
    waiting.until(lambda: not any(map(running, started)), "engines and gateway to be gone")
    assert list(tmp_path.iterdir()) == []


def test_no_vllm_to_show(tmp_path: Path) -> None:
    process = demo(tmp_path, "--engine", "vllm", KVGATE_CACHE=str(tmp_path / "empty"))
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "there is no " in err
    assert "hint: `make demo ENGINE=vllm`" in err
