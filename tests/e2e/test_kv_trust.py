"""A gateway that follows what stock engines cache: events over TCP and over a file, a restart of
an engine, a restart of the gateway itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e import cases
from e2e.fleet import BLOCK_SIZE, MODEL, Engine
from harness import waiting
from harness.gateway import Gateway, free_ports

CONFIG = """\
error_log stderr info;
http {{
    upstream small {{
        model {model};
        server 127.0.0.1:{engines[0]};
        server 127.0.0.1:{engines[1]};
        kv_aware;
        tokenizer remote;
    }}
    access_log off;
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://small; }} }}
    server {{ listen unix:{admin}; location / {{ admin; }} }}
}}
"""


class Following:
    """The gateway, and what it says of the engines' caches."""

    def __init__(self, folder: Path, engines: list[Engine]) -> None:
        self._folder, self._engines = folder, engines
        (self._port,) = free_ports(1)
        self.gateway: Gateway

    def start(self) -> None:
        admin = f"{self._folder}/kv.sock"
        ports = [engine.port for engine in self._engines]
        text = CONFIG.format(model=MODEL, engines=ports, port=self._port, admin=admin)
        self.gateway = Gateway(text, self._folder / "following", admin=admin)
        self.gateway.wait_ready(("127.0.0.1", self._port))

    def row(self, engine: Engine) -> dict[str, Any]:
        upstreams: Any = self.gateway.status()["upstreams"]
        rows = {row["address"]: row["kv"] for row in upstreams["small"]["engines"]}
        found: dict[str, Any] = rows[engine.address]
        return found

    def wait_exact(self, engine: Engine, batches: int = 0) -> dict[str, Any]:
        """Until everything is known of it, and it has said that much since it was followed."""

        def exact() -> dict[str, Any] | None:
            row = self.row(engine)
            good = row["trust"] == "exact" and row["events"]["batches"] >= batches
            return row if good else None

        try:
            found = waiting.until(exact, f"{engine.address} to be exact", 30)
        except waiting.NeverHappened as error:
            raise AssertionError(f"{error}: {self.row(engine)}") from None
        assert found is not None
        return found


@pytest.fixture(scope="module")
def following(engines: list[Engine], folder: Path) -> Iterator[Following]:
    one = Following(folder, engines)
    one.start()
    yield one
    one.gateway.stop()


def complete(engine: Engine, prompt: str) -> None:
    path, body = cases.completion(prompt=prompt, max_tokens=2)
    reply = httpx.post(engine.base_url + path, json=body, timeout=60)
    assert reply.status_code == 200, reply.text


def test_what_stock_engines_publish_is_followed(
    following: Following, engines: list[Engine]
) -> None:
    for engine, scheme in zip(engines, ("tcp://127.0.0.1:", "ipc://"), strict=True):
        before = following.wait_exact(engine)
        assert before["events"]["endpoint"].startswith(scheme)
        complete(engine, f"Engine {engine.port} is told this once. " * 20)
        after = following.wait_exact(engine, before["events"]["batches"] + 1)
        assert after["block_size"] == BLOCK_SIZE
        assert after["events"]["malformed"] == after["events"]["gaps"] == 0


def test_a_restarted_engine_is_known_again(following: Following, engines: list[Engine]) -> None:
    engine = engines[0]
    complete(engine, "Before it dies it has seen this. " * 20)
    said = following.wait_exact(engine)["events"]["next"]
    engine.server.kill()
    waiting.until(lambda: following.row(engine)["trust"] != "exact", "the loss to be seen", 10)
    engine.launch()
    engine.server.wait_ready()
    complete(engine, "After it came back it has seen this. " * 20)
    row = following.wait_exact(engine)
    assert 0 < row["events"]["next"] < said + 5
    assert row["events"]["restarts"] + int(row["events"]["next"] < said) > 0


def test_a_restarted_gateway_knows_what_was_said_before(
    following: Following, engines: list[Engine]
) -> None:
    said = [following.wait_exact(engine)["events"]["next"] for engine in engines]
    following.gateway.stop()
    following.start()
    for engine, number in zip(engines, said, strict=True):
        row = following.wait_exact(engine)
        assert row["events"]["next"] >= number > 0 and row["events"]["batches"] >= number
