"""Did a proxy find what the engines hold? From its own metrics, and from the engines that it chose.

A proxy that reads no prompt, or whose index stays empty, is cheap: its figures are void. So each
run with prompts has to show that nearly all of the documents that could be found were found.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

import prompts
import wire

FOUND = 0.9  # of what could be found, or the run is void
READY_S = 30.0
SETTLE_S = 1.0  # for events to arrive
PROBES = 900_000  # numbers of prompts from there on, after those of a run, are asked before it
_LINE = re.compile(r"^([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)$", re.M)
Metrics = dict[tuple[str, str], float]
Seen = dict[str, int]


def get(url: str, method: str = "GET") -> str:
    asked = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(asked, timeout=10) as reply:
        return str(reply.read().decode())


def metrics(url: str) -> Metrics:
    return {(m[1], m[2] or ""): float(m[3]) for m in _LINE.finditer(get(url))}


def total(found: Metrics, name: str, *labels: str) -> float:
    """Sum of the series whose labels hold all of these."""
    return sum(v for (n, text), v in found.items() if n == name and all(x in text for x in labels))


@dataclass(frozen=True, slots=True)
class State:
    """What the proxy and the engines have counted so far."""

    proxy: Metrics
    engines: Seen


@dataclass(frozen=True, slots=True)
class Probe:
    """One proxy and the engines behind it, about to be loaded with prompts from `first` on."""

    port: int
    metrics_url: str
    engines: tuple[int, ...]  # ports
    first: int

    def state(self) -> State:
        held = [json.loads(get(f"http://127.0.0.1:{p}/bench/held")) for p in self.engines]
        return State(
            metrics(self.metrics_url), {name: sum(one[name] for one in held) for name in held[0]}
        )

    def begin(self) -> State:
        """The engines hold their documents alone, and the proxy finds one. RuntimeError when that
        takes too long.
        """
        for port in self.engines:
            get(f"http://127.0.0.1:{port}/bench/reset", "POST")
        deadline = time.monotonic() + READY_S
        number = self.first + PROBES
        while True:
            time.sleep(SETTLE_S)
            before = self.state()
            while prompts.shared(number) < 0:
                number += 1
            for _ in range(2):  # a proxy that learns from requests alone knows the second
                self.ask(number)
            time.sleep(SETTLE_S)
            after = self.state()
            if share(before, after)[0] > 0:
                return after
            if time.monotonic() > deadline:
                raise RuntimeError(f"port {self.port}: finds nothing after {READY_S:g} s")
            number += 1

    def ask(self, number: int) -> None:
        ask = wire.Ask(wire.PROMPT_NONCE % number, False, 1, 0, False, prompts.messages(number))
        body = wire.request(b"", ask).partition(b"\r\n\r\n")[2]
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("POST", wire.PATH.decode(), body, {"content-type": "application/json"})
        connection.getresponse().read()
        connection.close()

    def end(self, before: State, replies: int) -> dict[str, Any]:
        """What was found, as shares of what could be; `void`: why the run counts for nothing."""
        after = self.state()
        part, how = share(before, after)
        seen = {name: after.engines[name] - before.engines[name] for name in after.engines}
        asked = seen["right"] + seen["wrong"]
        right = round(seen["right"] / max(asked, 1), 3)
        result: dict[str, Any] = {"found": round(part, 3), "by": how, "right_engine": right}
        wanted = replies * (1 - 1 / prompts.NEW_EVERY)
        if abs(asked - wanted) > 0.02 * wanted + 64:
            result["void"] = f"{asked} prompts of documents reached the engines, not {wanted:.0f}"
        elif part < FOUND:
            result["void"] = f"found {part:.3f} of what could be found ({how})"
        return result


def share(before: State, after: State) -> tuple[float, str]:
    """(share, in what) of documents between two states that the proxy knew to be there."""
    grown = {key: value - before.proxy.get(key, 0.0) for key, value in after.proxy.items()}
    seen = {name: after.engines[name] - before.engines[name] for name in after.engines}
    return found_share(grown, seen)


def found_share(grown: Metrics, seen: Seen) -> tuple[float, str]:
    """(share, in what) of documents that the proxy knew to be there; 0 where it knows nothing.
    One that learns from requests alone cannot know a document the first time.
    """
    if (local := total(grown, "kvgate_prompts_total", 'source="local"')) > 0:
        everything = total(grown, "kvgate_prompts_total")
        matched = total(grown, "kvgate_kv_matched_tokens_total")
        return min(local / everything, matched / max(seen["tokens"], 1)), "tokens matched"
    placed = total(grown, "vllm_router_kv_placement_lookups_total", 'result="hit"')
    if placed > 0:
        return placed / max(seen["right"] + seen["wrong"], 1), "lookups that hit"
    name = "vllm_router_prefix_routing_decisions_total"
    hits = total(grown, name, 'policy="cache_aware"', 'outcome="prefix_hit"')
    return hits / max(seen["again"], 1), "decisions by prefix, where asked before"
