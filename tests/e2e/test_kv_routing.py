"""KV-cache-aware routing over stock engines: what the gateway believes is what the engines say.

The truth is the engine's own `usage.prompt_tokens_details.cached_tokens` and its metrics; the
belief is the receipt on every reply. Requests are serial, so that they can be held side by side.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e import fleet
from e2e.fleet import BLOCK_SIZE, MODEL, Engine
from harness import waiting
from harness.gateway import Gateway, free_ports

CONFIG = """\
error_log stderr info;

http {{
    upstream aware {{
        model {model};
        server 127.0.0.1:{engines[0]};
        server 127.0.0.1:{engines[1]};
        kv_aware;
        kv_events auto;
        tokenizer {tokenizer};
        health_check interval=1s timeout=10s fails=2;
    }}
    upstream blind {{
        model {model};
        server 127.0.0.1:{engines[0]};
        server 127.0.0.1:{engines[1]};
    }}
    expose_receipt on;
    server {{ listen 127.0.0.1:{express}; location / {{ proxy_pass http://aware; }} }}
    server {{
        listen 127.0.0.1:{starlette}; express off;
        location / {{ proxy_pass http://aware; }}
    }}
    server {{ listen 127.0.0.1:{robin}; location / {{ proxy_pass http://blind; }} }}
    server {{ listen unix:{admin}; location / {{ admin; }} }}
}}
"""
WORDS = """river stone market engine window garden letter bridge winter paper orange signal
harbour candle forest mirror station copper village summer planet button valley music""".split()


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply: what the gateway had predicted, and what the engine then found."""

    predicted: int
    cached: int
    prompt: int
    trust: str
    engine: str
    text: str


class Front:
    """A gateway with kv_aware in front of the session's engines; may be started anew."""

    def __init__(self, engines: list[Engine], folder: Path) -> None:
        self.engines = engines
        self.folder = folder
        self.ports = dict(zip(("express", "starlette", "robin"), free_ports(3), strict=True))
        self.http = httpx.Client(timeout=120)
        self.start()

    def start(self) -> None:
        admin = f"{self.folder}/kv-admin.sock"
        config = CONFIG.format(
            model=MODEL,
            engines=[engine.port for engine in self.engines],
            tokenizer=fleet.WEIGHTS if fleet.KIND == "vllm" else "remote",
            admin=admin,
            **self.ports,
        )
        self.process = Gateway(config, self.folder / "kv-gateway", admin=admin)
        self.process.wait_ready(("127.0.0.1", self.ports["express"]))
        waiting.until(lambda: set(self.trusts()) == {"exact"}, "exact trust in both engines", 60)
        # The tokenizer is loaded and compared in the background; until then prompts go by bytes.
        waiting.until(lambda: self.tokens() in ("local", "engine"), "token ids of prompts", 60)

    def tokens(self) -> str:
        """Where the aware upstream's token ids come from."""
        found: Any = self.process.status()
        return str(found["upstreams"]["aware"]["tokenizer"]["state"])

    def trusts(self) -> list[str]:
        """The trust in each engine of the aware upstream, in order."""
        found: Any = self.process.status()
        return [engine["kv"]["trust"] for engine in found["upstreams"]["aware"]["engines"]]

    def ask(self, messages: list[dict[str, str]], way: str = "express") -> Answer:
        body = {"model": MODEL, "messages": messages, "max_tokens": 16, "temperature": 0}
        url = f"http://127.0.0.1:{self.ports[way]}/v1/chat/completions"
        reply = self.http.post(url, json=body)
        assert reply.status_code == 200, reply.text
        data = reply.json()
        head = reply.headers
        return Answer(
            int(head.get("x-kvgate-matched-tokens", -1)),
            data["usage"]["prompt_tokens_details"]["cached_tokens"]
            if data["usage"]["prompt_tokens_details"]
            else 0,
            data["usage"]["prompt_tokens"],
            head.get("x-kvgate-trust", ""),
            head["x-kvgate-engine"],
            data["choices"][0]["message"]["content"],
        )

    def ids(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        body = {"model": MODEL, "messages": messages}
        reply = self.http.post(f"{self.engines[0].base_url}/tokenize", json=body)
        return tuple(reply.json()["tokens"])


@pytest.fixture(scope="module")
def front(engines: list[Engine], folder: Path) -> Iterator[Front]:
    made = Front(engines, folder)
    try:
        yield made
    finally:
        made.process.stop()
        made.http.close()


def text(seed: str, words: int) -> str:
    drawn = random.Random(seed)
    return " ".join(drawn.choice(WORDS) for _ in range(words))


def conversation(seed: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": f"You are helper {seed}. {text(seed, 60)}"},
        {"role": "user", "content": f"Say something about {text(seed + 'u', 12)}."},
    ]


def differing(answers: list[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer.predicted != answer.cached]


def talk(front: Front, seed: str, turns: int, way: str) -> list[Answer]:
    messages = conversation(seed)
    answers = []
    for turn in range(turns):
        answer = front.ask(messages, way)
        answers.append(answer)
        messages.append({"role": "assistant", "content": answer.text})
        messages.append({"role": "user", "content": f"And {text(f'{seed}{turn}', 20)}?"})
    return answers


@pytest.mark.parametrize("way", ["express", "starlette"])
def test_predicted_tokens_are_the_engines_cached_tokens(front: Front, way: str) -> None:
    answers = [
        answer
        for number in range(4)
        for answer in talk(front, f"talk {way} {number}", 4, way)
    ]
    assert {answer.trust for answer in answers} == {"exact"}, answers
    assert sum(answer.cached for answer in answers) > 0
    assert not differing(answers)


def test_a_shared_prefix_workload_hits_as_an_oracle_would(front: Front) -> None:
    """Hit tokens by the engines' own counters, against the best any router could have got."""

    def prompts(name: str) -> list[list[dict[str, str]]]:
        made = [
            [
                {"role": "system", "content": text(f"{name} group {group}", 120)},
                {"role": "user", "content": text(f"{name} {group} {number}", 10)},
            ]
            for number in range(8)
            for group in range(5)
        ]
        random.Random(name).shuffle(made)
        return made

    def hits() -> float:
        return sum(engine.counter("vllm:prefix_cache_hits_total") for engine in front.engines)

    found = {}
    for way in ("express", "robin"):
        work = prompts(f"shared {way}")
        seen: set[tuple[int, ...]] = set()
        oracle = 0
        before = hits()
        for messages in work:
            ids = front.ids(messages)
            blocks = [ids[:end] for end in range(BLOCK_SIZE, len(ids), BLOCK_SIZE)]
            oracle += BLOCK_SIZE * sum(block in seen for block in blocks)
            seen.update(blocks)
            front.ask(messages, way)
        found[way] = (hits() - before) / oracle
    print(json.dumps({"hits_of_oracle": found}))
    assert found["express"] >= 0.95
    assert found["robin"] < found["express"]


def test_a_new_gateway_learns_what_engines_hold(front: Front) -> None:
    messages = conversation("before the gateway restarts")
    first = front.ask(messages)
    front.process.stop()
    front.start()
    again = front.ask(messages)
    assert again.engine == first.engine
    assert again.predicted == again.cached > 0


def test_a_reset_cache_is_missed_at_most_once(front: Front) -> None:
    messages = conversation("before the reset")
    front.ask(messages)
    for engine in front.engines:
        reply = httpx.post(f"{engine.base_url}/reset_prefix_cache", timeout=30)
        assert reply.status_code == 200, reply.text
    # An idle engine tells of the reset with its next step: the first request to each may miss.
    answers = [front.ask(conversation(f"after the reset {number}")) for number in range(4)]
    answers += [front.ask(messages), front.ask(messages)]
    assert len(differing(answers)) <= len(front.engines)
    assert answers[-1].predicted == answers[-1].cached > 0


def test_a_restarted_engine_is_believed_empty(front: Front) -> None:
    messages = conversation("before the engine restarts")
    held = front.ask(messages)
    assert front.ask(messages).predicted > 0
    victim = next(e for e in front.engines if held.engine.endswith(str(e.port)))
    victim.server.stop()
    victim.launch()
    victim.server.wait_ready()
    waiting.until(lambda: set(front.trusts()) == {"exact"}, "trust in the restarted engine", 60)
    answers = talk(front, "after the engine restarted", 3, "express")
    answers += [front.ask(messages), front.ask(messages)]
    assert not differing(answers)
    assert answers[-1].predicted > 0
