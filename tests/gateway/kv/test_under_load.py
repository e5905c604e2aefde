"""A whole gateway, two workers, while requests run: reloads that change what prompts are, workers
that are killed, and a start from nothing.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import model_folder, waiting
from harness.gateway import Gateway, free_ports
from harness.kv import chat

from engines.sim.process import SimEngine

URL = "/v1/chat/completions"
EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}
CLIENTS = 6


class Traffic:
    """Clients that ask again and again; counts of what they got."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.got: Counter[str] = Counter()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(CLIENTS)]

    def _ask(self, client: int) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            text = f"{client}" + " the of and to in is" * (turn % 40 + 5)
            body = chat(text, stream=turn % 2 == 0)
            try:
                reply = httpx.post(self.url + URL, json=body, timeout=20, trust_env=False)
            except httpx.HTTPError as error:
                self.got[type(error).__name__] += 1
            else:
                whole = not body["stream"] or "[DONE]" in reply.text
                self.got[str(reply.status_code) if whole else "cut"] += 1

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        self.more(CLIENTS)
        return self

    def more(self, count: int) -> None:
        """Until so many more have been answered."""
        wanted = self.got["200"] + count
        waiting.until(lambda: self.got["200"] >= wanted, f"{count} more answers: {self.got}", 30)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)


class Fleet:
    def __init__(self, folder: Path, engines: list[SimEngine]) -> None:
        self.folder, self.engines = folder, engines
        (self.port,) = free_ports(1)
        self.gateway: Gateway

    def text(self, upstreams: str) -> str:
        return (
            "worker_processes 2; error_log stderr info;\nhttp { access_log off;\n"
            f" {upstreams}\n server {{ listen 127.0.0.1:{self.port};\n"
            "  location / { proxy_pass http://$upstream_by_model; } }\n"
            f" server {{ listen unix:{self.folder}/admin.sock; location / {{ admin; }} }} }}\n"
        )

    def start(self, upstreams: str) -> None:
        self.gateway = Gateway(
            self.text(upstreams), self.folder, admin=f"{self.folder}/admin.sock"
        )
        self.gateway.wait_ready(("127.0.0.1", self.port))

    def reload(self, upstreams: str) -> None:
        before: Any = self.gateway.status()["generation"]
        self.gateway.config_file.write_text(self.text(upstreams))
        self.gateway.signal(signal.SIGHUP)
        waiting.until(lambda: self.gateway.status()["generation"] == before + 1, "reload", 15)

    def main(self, *directives: str) -> str:
        lines = " ".join(f"server {engine.address};" for engine in self.engines)
        return f"upstream main {{ {lines} model sim; kv_aware; {' '.join(directives)} }}"

    def rows(self) -> list[dict[str, Any]]:
        upstreams: Any = self.gateway.status()["upstreams"]
        return list(upstreams["main"]["engines"])

    def wait_settled(self, state: str) -> None:
        """Every worker is at rest: nothing in flight, exact, tokens by `state`."""

        def settled(document: Any) -> bool:
            main = document["upstreams"]["main"]
            return main["tokenizer"]["state"] == state and all(
                row["in_flight"] == 0 and row["kv"]["worst"] == "exact" for row in main["engines"]
            )

        self.gateway.wait_each(settled, f"all to come to rest, tokens by {state}", 30)

    def close(self) -> None:
        self.gateway.kill()
        self.gateway.stop()


@pytest.fixture
def fleet(tmp_path: Path, model: Path) -> Iterator[Callable[..., Fleet]]:
    """`fleet(*names)`: engines that serve these models, the gateway not started."""
    with ExitStack() as stack:

        def make(*names: str) -> Fleet:
            own = ["--tokenizer", model, "--kv-events-config", json.dumps(EVENTS)]
            one = Fleet(
                tmp_path,
                [stack.enter_context(SimEngine(name, *own, thread=True)) for name in names],
            )
            stack.callback(one.close)
            return one

        yield make


def test_reloads_that_change_what_prompts_are_lose_no_request(
    fleet: Callable[..., Fleet], model: Path, tmp_path: Path
) -> None:
    other = model_folder.write(tmp_path / "other", shift=5)
    one = fleet("sim", "sim")
    one.start(one.main(f"tokenizer {model};"))
    one.wait_settled("local")
    with Traffic(one.port) as traffic:
        for directives in (
            (f"tokenizer {other};",), ("tokenizer remote;", "kv_events off;"),
            ("tokenizer off;", "block_size 32;"), (f"tokenizer {model};", "profile h100-8b-tp1;"),
            (f"tokenizer {other};", "kv_capacity 5000;"), (f"tokenizer {model};", "slo ttft=1s;"),
        ):  # fmt: skip
            one.reload(one.main(*directives))
            traffic.more(10)
    assert set(traffic.got) == {"200"}, traffic.got
    one.wait_settled("local")


def test_a_worker_that_is_killed_amid_traffic_takes_its_load_with_it(
    fleet: Callable[..., Fleet], model: Path
) -> None:
    one = fleet("sim", "sim")
    one.start(one.main(f"tokenizer {model};"))
    one.wait_settled("local")
    with Traffic(one.port) as traffic:
        for _ in range(3):
            processes: Any = one.gateway.status()["processes"]
            victim = next(p["pid"] for p in processes if p["kind"] == "worker")
            os.kill(victim, signal.SIGKILL)
            traffic.more(20)
    lost = sum(traffic.got.values()) - traffic.got["200"]
    assert lost <= 3 * CLIENTS and not any(word.isdigit() and word != "200" for word in traffic.got)
    one.wait_settled("local")


def test_a_gateway_that_is_killed_comes_back_with_all_its_models(
    fleet: Callable[..., Fleet]
) -> None:
    names = ("a", "b", "c", "d")
    one = fleet(*names)
    base = f"http://127.0.0.1:{one.port}"
    upstreams = " ".join(
        f"upstream {name} {{ model {name}; server {engine.address}; kv_aware; }}"
        for name, engine in zip(names, one.engines, strict=True)
    )
    for _ in range(2):
        one.start(upstreams)

        def listed() -> bool:
            cards = httpx.get(base + "/v1/models", trust_env=False).json()["data"]
            return {card["id"] for card in cards} == set(names)

        waiting.until(listed, "all models to be listed", 20)
        for name in names:
            reply = httpx.post(base + URL, json=chat("x", model=name), trust_env=False)
            assert (reply.status_code, reply.json()["model"]) == (200, name)
        one.gateway.kill()
        one.gateway.stop()
