"""A gateway with simulated engines under some load, for the browser to look at.

Invariant: the load is bounded (a few clients, one request each at a time) and ends with the block.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from harness.disagg import Conf, connector
from harness.forward import forwarded
from harness.gateway import Gateway, free_ports

from engines.sim.process import SimEngine
from gateway import plan_report

TOKEN = "tok"
CLIENTS = 3
WORDS = ("water", "land", "over", "sea", "under", "light", "wind", "stone", "river", "tree")
ENGINE = ("sim", "--enable-prompt-tokens-details", "--profile", "h100-8b-tp1", "--tokens", "24",
          "--kv-tokens", "40000")  # fmt: skip
EVENTS = ("--kv-events-config", json.dumps({"enable_kv_cache_events": True,
                                            "endpoint": "tcp://*:0"}))  # fmt: skip
CONFIG = """\
error_log stderr info;
http {{
    upstream chat {{
        model sim;
        kv_aware;
        slo ttft=120ms tpot=14ms;
        plan_report {folder}/chat.plan;
        {disaggregate}
        {servers}
        health_check interval=1s timeout=1s fails=2;
    }}
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://chat; }} }}
    server {{
        listen unix:{folder}/admin.sock;
        location / {{ admin; }}
    }}
    server {{ listen 127.0.0.1:{admin}; location / {{ admin; }} admin_token {token}; }}
}}
"""


# As `kvgate plan fit --live` writes it.
PLAN = {
    "verdict": {
        "sentence": "Disaggregation pays here: 5P3D keeps the SLO for 93.1% of requests, 8 "
        "aggregated, chunk 1024 for 88.0% (+5.1 points); with other limits "
        "per token the better of the two changes at 41 ms."
    },
    "best": "5P3D",
    "attainment": 0.931,
    "now": {"layout": "3P4D", "attainment": 0.897},
    "bottleneck": "the first token is missed most (first token 6.2% of requests, per token 0.9%); "
    "prefill is busy 71%, links 18%, 34 answers run at once on an engine that answers",
    "requests": 1200,
    "assumed": ["links: 400 Gbit/s of each engine, 2 ms a transfer"],
}


@dataclass(frozen=True, slots=True)
class Fleet:
    url: str  # of the page, through the unix socket
    token_url: str  # of the page where the token is asked for
    gateway: Gateway


@contextlib.contextmanager
def one(folder: Path) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        sim = stack.enter_context(SimEngine(*ENGINE, *EVENTS))
        yield stack.enter_context(_behind(folder, [f"server {sim.address};"], ""))


@contextlib.contextmanager
def eight(folder: Path) -> Iterator[Fleet]:
    """Three that prefill, three that answer, one that does both, and one that is not there."""
    lines = []
    with contextlib.ExitStack() as stack:
        for role in ("prefill",) * 3 + ("decode",) * 3 + ("both",):
            kind = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}[role]
            sim = stack.enter_context(SimEngine(*ENGINE, *EVENTS, *connector(kind, Conf())))
            lines.append(f"server {sim.address} role={role};")
        lines.append(f"server 127.0.0.1:{free_ports(1)[0]} role=both;")
        yield stack.enter_context(_behind(folder, lines, "disaggregate always;"))


@contextlib.contextmanager
def sixty_four(folder: Path) -> Iterator[Fleet]:
    """Eight servers with eight ranks each."""
    ranks = ("--data-parallel-size", "8")
    with contextlib.ExitStack() as stack:
        sims = [stack.enter_context(SimEngine(*ENGINE, *ranks)) for _ in range(8)]
        lines = [f"server {sim.address} ranks=8;" for sim in sims]
        yield stack.enter_context(_behind(folder, lines, ""))


@contextlib.contextmanager
def _behind(folder: Path, servers: list[str], disaggregate: str) -> Iterator[Fleet]:
    port, admin = free_ports(2)
    text = CONFIG.format(
        servers="\n        ".join(servers), disaggregate=disaggregate, port=port, admin=admin,
        folder=folder, token=TOKEN,
    )  # fmt: skip
    plan_report.write(f"{folder}/chat.plan", PLAN, time.time() - 7200)
    gateway = Gateway(text, folder, admin=str(folder / "admin.sock"))
    try:
        gateway.wait_ready(("127.0.0.1", port))
        with forwarded(f"{folder}/admin.sock") as tunnel, _load(port):
            yield Fleet(f"http://127.0.0.1:{tunnel}/kvgate/", f"http://127.0.0.1:{admin}/kvgate/",
                        gateway)  # fmt: skip
    finally:
        gateway.stop()


@contextlib.contextmanager
def _load(port: int) -> Iterator[None]:
    over = threading.Event()
    threads = [threading.Thread(target=_ask, args=(port, n, over)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _ask(port: int, seed: int, over: threading.Event) -> None:
    """Conversations that share their beginning, some of them for a model that is not there."""
    rng = random.Random(seed)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
        for number in itertools.count():
            if over.is_set():
                return
            start = " ".join(WORDS[n % len(WORDS)] for n in range(number % 5, 900))
            rest = " ".join(rng.choices(WORDS, k=rng.randrange(20, 600)))
            model = "absent" if number % 40 == 39 else "sim"
            body = {"model": model, "stream": True, "max_tokens": rng.randrange(4, 30),
                    "stream_options": {"include_usage": True},
                    "messages": [{"role": "user", "content": start + rest}]}  # fmt: skip
            with client.stream("POST", "/v1/chat/completions", json=body) as reply:
                reply.read()
