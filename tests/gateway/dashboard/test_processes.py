"""Streams of a gateway with workers: none of them keeps a worker that is told to end."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import waiting
from harness.gateway import Gateway, free_ports

CONF = """\
worker_processes 2;
error_log stderr info;
http {{
    upstream main {{ server 127.0.0.1:1; health_check off; }}
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://main; }} }}
    server {{ listen unix:{folder}/admin.sock; location / {{ admin; }} }}
}}
"""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    (port,) = free_ports(1)
    text = CONF.format(port=port, folder=tmp_path)
    made = Gateway(text, tmp_path, admin=str(tmp_path / "admin.sock"))
    try:
        made.wait_ready(("127.0.0.1", port), "/kvgate/health")
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def browser(gateway: Gateway) -> Iterator[Iterator[dict[str, Any]]]:
    """Snapshots until the stream ends."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(gateway.admin)
        sock.sendall(b"GET /kvgate/live HTTP/1.1\r\nhost: admin\r\n\r\n")
        lines = sock.makefile("rb")
        yield (json.loads(line[6:]) for line in lines if line.startswith(b"data: "))


def test_a_gateway_that_is_told_to_quit_does_not_wait_for_browsers(gateway: Gateway) -> None:
    with browser(gateway) as snapshots:
        assert next(snapshots)["upstreams"]["main"]["engines"]
        gateway.signal(signal.SIGQUIT)
        list(snapshots)  # until the stream ends, which it does by itself, or TimeoutError
        assert gateway.wait_exit(15) == 0


def test_a_reload_shows_and_the_stream_goes_on(gateway: Gateway) -> None:
    with browser(gateway) as snapshots:
        assert next(snapshots)["gateway"]["generation"] == 1
        gateway.signal(signal.SIGHUP)

        def seen() -> bool:
            one = next(snapshots)
            return any("generation 2" in change["what"] for change in one["changes"])

        waiting.until(seen, "the reload among the changes", 15)
