"""The gateway as a program: exit statuses, its pid file, what it says when it cannot start."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from harness import waiting
from harness.gateway import Gateway, free_ports


def conf(port: int, more: str = "") -> str:
    return (
        f"{more} http {{ upstream main {{ server 127.0.0.1:1; health_check off; }} "
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://main; }} }} }}"
    )


def started(folder: Path, text: str, port: int) -> Gateway:
    gateway = Gateway(text, folder)
    gateway.wait_ready(("127.0.0.1", port))
    return gateway


def test_pid_file_lives_as_long_as_the_process(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    pid = tmp_path / "kvgate.pid"
    gateway = started(tmp_path, conf(port, f"pid {pid};"), port)
    try:
        waiting.until(pid.exists, "the pid file")
        assert int(pid.read_text()) == gateway.process.pid
        gateway.signal(signal.SIGQUIT)
        assert gateway.wait_exit() == 0
    finally:
        gateway.stop()
    assert not pid.exists()


def test_a_taken_address_is_exit_status_3_and_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gateway = Gateway(conf(port), tmp_path)
        try:
            assert gateway.wait_exit() == 3
        finally:
            gateway.stop()
    assert f"cannot listen on 127.0.0.1:{port}" in gateway.log()
    assert "Traceback" not in gateway.log()


def test_a_log_that_cannot_be_opened_is_exit_status_1(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    path = tmp_path / ("long" * 75)  # more than a file system takes, which only opening it shows
    text = conf(port).replace("http {", f"http {{ access_log {path};", 1)
    gateway = Gateway(text, tmp_path)
    try:
        assert gateway.wait_exit() == 1
    finally:
        gateway.stop()
    assert f"{path}: File name too long" in gateway.log() and "Traceback" not in gateway.log()


def test_the_error_log_goes_where_it_is_told(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    error_log = tmp_path / "error.log"
    gateway = started(tmp_path, conf(port, f"error_log {error_log} info;"), port)
    try:
        waiting.until(lambda: "serving on" in error_log.read_text(), "a line in the error log")
        gateway.signal(signal.SIGTERM)
        assert gateway.wait_exit() == 0
    finally:
        gateway.stop()
    assert "kvgate ends" in error_log.read_text()
