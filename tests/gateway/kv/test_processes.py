"""A whole gateway, two workers, in front of engines with a real tokenizer: decisions, `kvgate
explain`, a reload, an engine that starts anew.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import model_folder, waiting
from harness.gateway import Gateway, free_ports, run_cli
from harness.kv import chat, receipt

from engines.sim.process import SimEngine

EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}
CHAT = "/v1/chat/completions"


class Fleet:
    def __init__(self, folder: Path, model: Path, engines: list[SimEngine]) -> None:
        self.folder, self.model, self.engines = folder, model, engines
        (self.port,) = free_ports(1)
        self.more = ""
        self.gateway = Gateway(self.text(), folder, admin=f"{folder}/admin.sock")
        self.gateway.wait_ready(("127.0.0.1", self.port))
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False)

    def text(self) -> str:
        lines = " ".join(f"server {engine.address};" for engine in self.engines)
        return (
            "worker_processes 2; error_log stderr info;\nhttp { access_log off;\n"
            f" upstream main {{ {lines} kv_aware; tokenizer {self.model}; {self.more} }}\n"
            f" server {{ listen 127.0.0.1:{self.port};\n"
            "  location / { proxy_pass http://main; expose_receipt on; } }\n"
            f" server {{ listen unix:{self.folder}/admin.sock; location / {{ admin; }}\n"
            "  location = /metrics { metrics; } } }\n"
        )

    def rows(self) -> list[dict[str, Any]]:
        upstreams: Any = self.gateway.status()["upstreams"]
        return list(upstreams["main"]["engines"])

    def wait_known(self) -> None:
        """Every worker has taken every event, and makes the engine's tokens."""

        def known(document: Any) -> bool:
            main = document["upstreams"]["main"]
            sent = {e.address: e.state()["event_seq"][0] for e in self.engines}
            return main["tokenizer"]["state"] == "local" and all(
                row["kv"]["trust"] == "exact"
                and ((row["kv"]["events"] or {}).get("next") or 0) == sent[row["address"]]
                for row in main["engines"]
            )

        self.gateway.wait_each(known, "events and tokens to be known")

    def ask(self, body: dict[str, Any]) -> httpx.Response:
        """On a connection of its own, so that either worker may get it."""
        with httpx.Client(base_url=self.client.base_url, trust_env=False) as client:
            return client.post(CHAT, json=body)

    def reload(self) -> None:
        before = self.gateway.status()["generation"]
        self.gateway.config_file.write_text(self.text())
        self.gateway.signal(signal.SIGHUP)
        waiting.until(lambda: self.gateway.status()["generation"] == before + 1, "reload", 10)  # type: ignore[operator]

    def close(self) -> None:
        self.client.close()
        self.gateway.stop()


@pytest.fixture
def fleet(tmp_path: Path, model: Path) -> Iterator[Callable[..., Fleet]]:
    with ExitStack() as stack:

        def start(count: int = 2, thread: bool = True) -> Fleet:
            engines = [
                stack.enter_context(
                    SimEngine("sim", "--tokenizer", model, "--enable-prompt-tokens-details",
                              "--kv-events-config", json.dumps(EVENTS),
                              *([] if thread else ["--port", 0]), thread=thread)
                )
                for _ in range(count)
            ]  # fmt: skip
            made = Fleet(tmp_path, model, engines)
            stack.callback(made.close)
            return made

        yield start


def check(reply: httpx.Response) -> int:
    """What was expected was found: how much."""
    found = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] or 0
    assert receipt(reply)["policy"] == "kv"
    assert int(receipt(reply)["matched-tokens"]) == found
    return int(found)


def test_either_worker_expects_what_is_there(fleet) -> None:  # type: ignore[no-untyped-def]
    one = fleet()
    bodies = [chat(f" the{n} of and to in is" * 30) for n in range(3)]
    found = 0
    for at in range(12):
        one.wait_known()
        found += check(one.ask(bodies[at % 3]))
    assert found > 1500
    waiting.until(
        lambda: 'kvgate_kv_compared_total{equal="yes"} 12.0' in one.gateway.metrics(),
        "all requests to have been compared",
    )


def test_explain_asks_the_running_gateway(fleet, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    one = fleet()
    body = chat(" the of and to in is" * 40)
    one.wait_known()
    home = receipt(one.ask(body))["engine"]
    one.wait_known()
    (tmp_path / "request.json").write_text(json.dumps(body))
    words = ["explain", "-c", str(one.gateway.config_file), str(tmp_path / "request.json")]
    shown = run_cli(*words)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"engine    {home}, decided in" in shown.stdout and "device=" in shown.stdout
    found = json.loads(run_cli(*words, "--json").stdout)
    assert found["engine"] == home and found["prompt"]["source"] == "local"
    assert found["engines"][0]["matched"]["device"] > 200
    (tmp_path / "bad.json").write_text("{")
    bad = run_cli(*words[:-1], str(tmp_path / "bad.json"))
    assert bad.returncode == 1 and "JSON object" in bad.stderr
    gone = run_cli(*words[:-1], str(tmp_path / "none.json"))
    assert gone.returncode == 2 and "cannot read" in gone.stderr


def test_a_reload_keeps_what_is_known(fleet, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    one = fleet()
    body = chat(" the of and to in is" * 40)
    one.wait_known()
    assert check(one.ask(body)) == 0
    one.wait_known()
    one.more = "slo ttft=2s;"
    one.reload()
    for _ in range(4):  # at once, in both workers
        assert check(one.ask(body)) > 200
        one.wait_known()
    one.model = model_folder.write(tmp_path / "other", shift=5)
    one.reload()

    one.gateway.wait_each(
        lambda said: said["upstreams"]["main"]["tokenizer"]["compared"] == "differs",
        "the other tokenizer to be found out",
    )
    reply = one.ask(body)
    assert receipt(reply)["prompt"] == "tokenize" and check(reply) > 200


def test_an_engine_that_starts_anew_is_known_to_be_empty(fleet) -> None:  # type: ignore[no-untyped-def]
    one = fleet(1, thread=False)
    (engine,) = one.engines
    body = chat(" the of and to in is" * 40)
    one.wait_known()
    one.ask(body)
    one.wait_known()
    assert check(one.ask(body)) > 200
    engine.kill()
    engine.start()
    waiting.until(lambda: one.rows()[0]["state"] == "up", "the engine to be up again", 30)
    one.wait_known()
    assert check(one.ask(body)) == 0
    one.wait_known()
    assert check(one.ask(body)) > 200
