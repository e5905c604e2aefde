"""A gateway that goes down while prompts are computed: whoever waits for one is answered, and what
one without a client left behind is let go."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from harness import disagg, waiting
from harness.disagg import Conf
from harness.gateway import Gateway, free_ports

from engines.sim.process import SimEngine

PATH = "/v1/completions"
Engines = tuple[SimEngine, SimEngine]


@contextmanager
def running(
    sim: Callable[..., SimEngine], folder: Path, lane: str, step_ms: int
) -> Iterator[tuple[Gateway, str, Engines]]:
    """A gateway process before a prefill engine with steps of so many ms; and its base URL."""
    conf = Conf(lane=lane)
    p = sim(*disagg.connector("kv_producer", conf), "--profile", f"fixed:{step_ms}")
    d = sim(*disagg.connector("kv_consumer", conf))
    (port,) = free_ports(1)
    http = disagg.text(conf, [p.address], [d.address], admin=folder / "admin.sock")
    http = http.replace("listen 127.0.0.1:0", f"listen 127.0.0.1:{port}")
    config = f"worker_shutdown_timeout 20s;\nhttp {{ {http} }}"
    gateway = Gateway(config, folder, admin=str(folder / "admin.sock"))
    try:
        gateway.wait_ready(("127.0.0.1", port))
        yield gateway, f"http://127.0.0.1:{port}", (p, d)
    finally:
        gateway.stop()


def waits(p: SimEngine) -> None:
    waiting.until(lambda: p.state()["running"] > 0, "the prefill to run", 5)


@pytest.mark.parametrize(
    ("number", "step_ms", "status"), [(signal.SIGQUIT, 700, 200), (signal.SIGTERM, 5000, 503)]
)
def test_a_client_that_waits_for_a_prefill_is_answered(
    sim: Callable[..., SimEngine], tmp_path: Path, lane: str,
    number: signal.Signals, step_ms: int, status: int,
) -> None:  # fmt: skip
    """Drained: by the engines. Stopped: that the gateway stops."""
    with (
        running(sim, tmp_path, lane, step_ms) as (gateway, url, (p, _)),
        ThreadPoolExecutor() as pool,
    ):
        asking = pool.submit(httpx.post, url + PATH, json=disagg.completion(), timeout=20)
        waits(p)
        gateway.signal(number)
        reply = asking.result()
        assert reply.status_code == status, reply.text
        if status == 503:
            assert reply.json()["error"]["code"] == "draining"
        assert gateway.wait_exit() == 0


def test_a_drain_lets_go_what_clients_left_behind(
    sim: Callable[..., SimEngine], tmp_path: Path, lane: str
) -> None:
    with running(sim, tmp_path, lane, 700) as (gateway, url, (p, _)):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
            request = httpx.Request("POST", url + PATH, json=disagg.completion())
            head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
            client.sendall(f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode() + request.read())
            waits(p)
        gateway.signal(signal.SIGQUIT)
        assert gateway.wait_exit() == 0
        assert p.state()["transfer"]["leases"] == 0 and p.state()["blocks_used"] == 0
        assert disagg.metric(p, "nixl_num_kv_expired_reqs_total") == 0
