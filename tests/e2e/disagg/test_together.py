"""Routing by KV cache, two legs and kvbm in all eight combinations, on stock vLLM: two engines that
prefill and one that answers, with NIXL and kvbm through MultiConnector.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from e2e import fleet
from e2e.kvbm_vllm import BLOCK, HOST, LOADABLE, MODEL, WEIGHTS, Vllm, prompt
from harness.gateway import Gateway, free_ports
from harness.kvbm_daemon import Served
from harness.waiting import until

from kvbm import engine_config

pytestmark = pytest.mark.skipif(
    fleet.KIND == "sim" or not fleet.VLLM.exists(), reason="needs stock vLLM; hint: env.sh"
)

CONFIG = """\
error_log stderr info;
http {{
    upstream three {{ model tiny; health_check interval=1s timeout=10s fails=3; {upstream} }}
    access_log {folder}/access.log;
    expose_receipt on;
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://three; }} }}
    server {{
        listen unix:{folder}/admin.sock;
        location / {{ admin; }}
        location /metrics {{ metrics; }}
    }}
}}
"""
LOADED = "vllm:kv_offload_kvbm_loaded_blocks_total"


@dataclass(frozen=True, slots=True)
class Switches:
    kv: bool
    two_legs: bool
    kvbm: bool

    def __str__(self) -> str:
        names = (("kv", self.kv), ("two_legs", self.two_legs), ("kvbm", self.kvbm))
        return "+".join(name for name, is_on in names if is_on) or "plain"


EIGHT = [Switches(*bits) for bits in itertools.product((False, True), repeat=3)]
ALL = EIGHT[-1]


@dataclass(slots=True)
class Fleet:
    engines: list[Vllm]
    daemon: Served
    events: str
    replay: str
    said: dict[int, tuple[int, ...]]  # by the prompt's number

    def push_out(self) -> None:
        for engine in self.engines:
            engine.push_out()

    def loaded(self) -> int:
        return int(sum(engine.engine.counter(LOADED) for engine in self.engines))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    root = tmp_path_factory.mktemp("together")
    events, replay = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    text = (
        "disk { path disk; size 256m; segment 4m; sync 50ms; }\n"
        f"events {events} replay={replay} model={WEIGHTS};\n"
    )
    with Served(root, text) as daemon:
        engines = [
            Vllm(
                engine_config.connector(daemon.socket, HOST), root,
                with_nixl=True, with_events=True,
            )
            for _ in range(3)
        ]  # fmt: skip
        try:
            for each in engines:
                each.engine.launch()
            for each in engines:
                each.engine.server.wait_ready()
            yield Fleet(engines, daemon, events, replay, {})
        finally:
            for each in engines:
                if hasattr(each.engine, "server"):
                    each.engine.server.stop()


@contextmanager
def front(three: Fleet, switches: Switches, folder: Path) -> Iterator[tuple[Gateway, str]]:
    [port] = free_ports(1)
    roles = ("prefill", "prefill", "decode") if switches.two_legs else ("both",) * 3
    store = f"kvbm={three.events} kvbm_replay={three.replay}" if switches.kvbm else ""
    upstream = "".join(
        f"server {each.engine.address} role={role} {store};"
        for each, role in zip(three.engines, roles, strict=True)
    )
    if switches.kv:
        upstream += f"kv_aware; tokenizer {WEIGHTS};"
    elif switches.two_legs:  # which two engines costs least is asked without caches
        upstream += f"kv_aware overlap_weight=0; kv_events off; tokenizer {WEIGHTS};"
    else:
        upstream += "least_conn;"
    upstream += "disaggregate always;" if switches.two_legs else ""
    config = CONFIG.format(upstream=upstream, folder=folder, port=port)
    gateway = Gateway(config, folder, admin=f"{folder}/admin.sock")
    try:
        gateway.wait_ready(("127.0.0.1", port))
        yield gateway, f"http://127.0.0.1:{port}/v1/completions"
        assert gateway.alive, gateway.log()[-4000:]
    finally:
        gateway.stop()


def ask(url: str, number: int) -> tuple[tuple[int, ...], httpx.Headers]:
    body = {
        "model": MODEL, "prompt": prompt(number), "max_tokens": 16, "temperature": 0,
        "return_token_ids": True,
    }  # fmt: skip
    reply = httpx.post(url, json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return tuple(reply.json()["choices"][0]["token_ids"]), reply.headers


def is_ready(gateway: Gateway, switches: Switches) -> bool:
    """What a combination needs is there: token ids, trust, what the daemon holds."""
    upstream = gateway.status()["upstreams"]["three"]
    if (switches.kv or switches.two_legs) and upstream["tokenizer"]["state"] != "local":
        return False
    if not switches.kv:
        return True
    rows = [engine["kv"] for engine in upstream["engines"]]
    trusted = all(row["trust"] == "exact" for row in rows)
    stores = [row["kvbm"] for row in rows]
    known = all(store and store["trust"] == "exact" for store in stores) == switches.kvbm
    return trusted and known


def comes_back(
    three: Fleet, url: str, number: int, reference: tuple[int, ...], switches: Switches
) -> httpx.Headers:
    """Asks until blocks are loaded, where kvbm is on: a load that takes too long is given up, on a
    machine that is busy. What is said is the same each time. Returns the last reply's headers."""
    headers: list[httpx.Headers] = []

    def is_loaded() -> bool:
        three.push_out()
        before = three.loaded()
        said, of_reply = ask(url, number)
        assert said == reference
        headers.append(of_reply)
        return three.loaded() > before

    if switches.kvbm:
        until(is_loaded, "blocks from kvbm", 60.0)
    else:
        assert not is_loaded()
    return headers[-1]


@pytest.mark.parametrize(
    "switches",
    [pytest.param(one, marks=() if one == ALL else pytest.mark.long) for one in EIGHT],
    ids=str,
)
def test_each_combination_answers_and_reports(
    three: Fleet, switches: Switches, tmp_path: Path
) -> None:
    number = 100 + EIGHT.index(switches)
    if switches.kvbm and three.daemon.process is None:
        three.daemon.start()
    if not switches.kvbm:
        three.daemon.end()
    reference = three.engines[2].ask(prompt(number)).tokens
    with front(three, switches, tmp_path) as (gateway, url):
        until(lambda: is_ready(gateway, switches), "the gateway to know its engines", 60.0)
        for _ in range(2):
            said, headers = ask(url, number)
            assert said == reference
            assert ("x-kvgate-cost-ms" in headers) == (switches.kv or switches.two_legs)
            assert ("x-kvgate-prefill" in headers) == switches.two_legs, dict(headers)
        if switches.kvbm:
            blocks = LOADABLE // BLOCK
            until(lambda: three.daemon.tier("disk")["blocks"] >= blocks, "the stores", 30.0)
        headers = comes_back(three, url, number, reference, switches)
        matched = "kvgate_kv_matched_tokens_total"
        lines = [line for line in gateway.metrics().splitlines() if line.startswith(matched)]
        disk = sum(float(line.rpartition(" ")[2]) for line in lines if 'tier="disk"' in line)
        assert (disk > 0) == (switches.kv and switches.kvbm)
        if switches.kv and switches.kvbm:
            assert "disk=" in headers["x-kvgate-tier"]
