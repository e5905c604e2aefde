"""An error log that nobody reads: it costs records, never requests, reloads or a stop."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import waiting
from harness.client import Client, prompt
from harness.gateway import ROOT, command, free_ports

PIPE_BYTES = 4096
CONF = """worker_processes 2; error_log stderr debug; pid {folder}/pid;
http {{ access_log off; upstream u {{ server 127.0.0.1:1; health_check interval=100ms; model m1; }}
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://u; }}
location /{generation}/ {{ return 200 ok; }} }} }}
"""


@pytest.fixture
def stalled() -> Iterator[tuple[int, int]]:
    """(reading, writing end) of a pipe with little room."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    yield ends
    for end in ends:
        os.close(end)


def waiting_bytes(end: int) -> int:
    """How much of a pipe's data has not been read."""
    raw = fcntl.ioctl(end, 0x541B, b"\0" * 4)  # FIONREAD
    return int.from_bytes(raw, "little")


def test_a_gateway_serves_on_while_its_stderr_is_stuck(
    tmp_path: Path, stalled: tuple[int, int]
) -> None:
    reading, writing = stalled
    (port,) = free_ports(1)
    file = tmp_path / "kvgate.conf"
    file.write_text(CONF.format(folder=tmp_path, port=port, generation="first"))
    process = subprocess.Popen(
        command(file, tmp_path),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=writing,
    )

    def status(target: str) -> int:
        try:
            with Client(("127.0.0.1", port), timeout_s=5) as client:
                return client.ask(prompt(), target=target).status
        except OSError:
            return 0

    try:
        waiting.until(lambda: status("/first/") == 200, "the gateway to serve", 20)
        for _ in range(100):  # each leaves a line
            assert status("/v1/completions") in (502, 503)
        waiting.until(lambda: waiting_bytes(reading) > PIPE_BYTES - 512, "the pipe to be full")
        file.write_text(CONF.format(folder=tmp_path, port=port, generation="second"))
        process.send_signal(signal.SIGHUP)
        waiting.until(lambda: status("/second/") == 200, "the new configuration")
        for _ in range(100):
            assert status("/v1/completions") in (502, 503)
        assert status("/second/") == 200
        process.terminate()
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait(5)
