"""Roles follow a workload that turns from long prompts to long answers and back, on two engines
that do both.

The load is that of the last 40 s or so (docs/roles.md), so a turn shows in the roles after that
time, and a dwell and a drain for every move.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e import fleet
from e2e.disagg import asks
from e2e.disagg import pair as pairs
from e2e.disagg.pair import BLOCK, LEASE_S, MODEL, WEIGHTS, Setup
from e2e.fleet import Engine
from harness.gateway import Gateway, free_ports

pytestmark = pytest.mark.long

DWELL_S = 6
MOVES_MAX = 3  # of one turn: from kept for one kind to both, to the other kind, and a second engine
FOLLOW_S = 60.0 + MOVES_MAX * 3 * DWELL_S
PROMPT, PROMPTS = 900, 12  # tokens; so many are under way at any time, their answers are short
ANSWER, ANSWERS = 80, 18  # likewise, their prompts are short

CONFIG = """\
error_log stderr info;

http {{
    upstream team {{
        model {model};
        {servers}
        kv_aware;
        kv_events off;
        block_size {block};
        tokenizer {tokenizer};
        profile neutral base=2 a0=2 b=1.2 c=0 hb=3 hk=0 ovh=1 chunk=2048;
        slo ttft=2s tpot=20ms;
        disaggregate auto;
        kv_lease {lease}s;
        roles elastic dwell={dwell}s;
        health_check interval=1s timeout=5s fails=3;
    }}
    access_log {folder}/access.log;
    expose_receipt on;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://team; }}
    }}
    server {{
        listen unix:{admin};
        location / {{ admin; }}
        location /metrics {{ metrics; }}
    }}
}}
"""


@pytest.fixture(scope="module")
def team(folder: Path) -> Iterator[list[Engine]]:
    made = [pairs.engine("both", Setup(), folder) for _ in range(2)]
    with pairs.running(made):
        yield made


@dataclass(slots=True)
class Seen:
    """The roles of the team, at every change. `at_s`: since the first look."""

    gateway: Gateway
    began_s: float = field(default_factory=time.monotonic)
    changes: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)

    def look(self) -> tuple[str, ...]:
        found: Any = json.loads(self.gateway.get("/kvgate/roles")[1])
        now = tuple(str(each["role"]) for each in found["team"]["engines"])
        if not self.changes or self.changes[-1][1] != now:
            self.changes.append((time.monotonic() - self.began_s, now))
            print(f"e2e: roles after {self.changes[-1][0]:.0f} s: {', '.join(now)}")
        return now


class Load:
    """Requests from several threads for as long as the block runs; what went wrong with any."""

    def __init__(self, base_url: str, threads: int, ask: Callable[[int], asks.Ask]) -> None:
        self.base_url, self.ask = base_url, ask
        self.wrong: list[str] = []
        self.sent = 0
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(90)

    def _run(self) -> None:
        with httpx.Client(timeout=90) as http:
            while not self._over.is_set():
                self._one(http, next(self._numbers))

    def _one(self, http: httpx.Client, number: int) -> None:
        path, body = self.ask(number)
        try:
            reply = http.post(self.base_url + path, json=body)
            tokens = reply.json()["usage"]["completion_tokens"] if reply.is_success else 0
            if tokens != body["max_tokens"]:
                self.wrong.append(f"{reply.status_code}, {tokens} tokens: {reply.text[:200]}")
        except httpx.HTTPError as error:
            self.wrong.append(repr(error))
        self.sent += 1


def follow(seen: Seen, kept: str, other: str) -> float:
    """Until an engine is kept for the one kind of work and none for the other: how long it took."""
    began_s = time.monotonic()
    while kept not in (roles := seen.look()) or other in roles:
        assert time.monotonic() - began_s < FOLLOW_S, f"none is kept for {kept}: {seen.changes}"
        threading.Event().wait(0.5)
    return time.monotonic() - began_s


def stay(seen: Seen, for_s: float) -> None:
    """Looks on for some time, which is what the test is about."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < for_s:
        seen.look()
        threading.Event().wait(0.5)


def steady(changes: list[tuple[float, tuple[str, ...]]]) -> bool:
    """Whether no engine came back to a role that it had given up within the turn."""
    for roles in zip(*(each for _, each in changes), strict=True):
        met = [role for role, _ in itertools.groupby(roles)]
        if len(met) > len(set(met)):
            return False
    return len(changes) <= MOVES_MAX + 1


def test_roles_follow_a_load_that_turns_and_turns_back(team: list[Engine], folder: Path) -> None:
    (port,), admin = free_ports(1), folder / "roles.sock"
    servers = " ".join(f"server 127.0.0.1:{engine.port} role=both;" for engine in team)
    config = CONFIG.format(
        model=MODEL, servers=servers, block=BLOCK, lease=LEASE_S, dwell=DWELL_S, folder=folder,
        tokenizer=WEIGHTS if fleet.KIND == "vllm" else "remote", port=port, admin=admin,
    )  # fmt: skip

    def load(turn: int, count: int, prompt: int, answer: int) -> Load:
        def ask(number: int) -> asks.Ask:
            seed = f"turn {turn} {number}"
            return asks.completion(seed, prompt, max_tokens=answer, ignore_eos=True)

        return Load(f"http://127.0.0.1:{port}", count, ask)

    gateway = Gateway(config, folder / "roles", admin=str(admin))
    try:
        gateway.wait_ready(("127.0.0.1", port))
        seen = Seen(gateway)
        for turn, kept in enumerate(("prefill", "decode", "prefill")):
            asked = (PROMPTS, PROMPT, 2) if kept == "prefill" else (ANSWERS, 20, ANSWER)
            seen.changes = seen.changes[-1:]
            with load(turn, *asked) as one:
                took_s = follow(seen, kept, "decode" if kept == "prefill" else "prefill")
                stay(seen, 3 * DWELL_S)
            print(f"e2e: {kept} after {took_s:.0f} s, {one.sent} requests, {len(one.wrong)} wrong")
            assert one.wrong == [] and steady(seen.changes), seen.changes
    finally:
        print(gateway.log()[-2500:])
        gateway.stop()
