"""Did a proxy find what the engines hold? From its own metrics, and from the engines that it chose.

A proxy that reads no prompt, or whose index stays empty, is cheap: its figures are void. So each run
with prompts has to show that nearly all of the documents that could be found were found.
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

import prompts

FOUND = 0.9  # of what could be found, or the run is void
READY_S = 20.0
SETTLE_S = 1.0  # for events to arrive
_LINE = re.compile(r"^([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)$", re.M)
Metrics = dict[tuple[str, str], float]


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
class Probe:
    """One proxy and the engines behind it, about to be loaded with prompts."""

    url: str  # of the proxy's metrics
    engines: tuple[int, ...]  # ports

    def begin(self) -> Metrics:
        """The engines hold their documents alone, and the proxy has had time to hear of it."""
        for port in self.engines:
            get(f"http://127.0.0.1:{port}/bench/reset", "POST")
        deadline = time.monotonic() + READY_S
        time.sleep(SETTLE_S)
        while True:
            found = metrics(self.url)
            states = {text for (name, text), v in found.items() if name in READY and v}
            if not states or any(READY_LABEL in text for text in states):
                return found
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.url}: no tokenizer after {READY_S:g} s: {states}")
            time.sleep(0.1)

    def end(self, before: Metrics, replies: int) -> dict[str, Any]:
        """What was found, as shares of what could be; `void` says why the run counts for nothing."""
        after = metrics(self.url)
        grown = {key: value - before.get(key, 0.0) for key, value in after.items()}
        held = [json.loads(get(f"http://127.0.0.1:{p}/bench/held")) for p in self.engines]
        seen = {name: sum(one[name] for one in held) for name in held[0]}
        shared = seen["right"] + seen["wrong"]
        share, how = found_share(grown, seen)
        result: dict[str, Any] = {"found": round(share, 3), "by": how, "right_engine": round(seen["right"] / max(shared, 1), 3)}
        wanted = replies * (1 - 1 / prompts.NEW_EVERY)
        if abs(shared - wanted) > 0.02 * wanted + 64:
            result["void"] = f"{shared} prompts of documents reached the engines, not {wanted:.0f}"
        elif share < FOUND:
            result["void"] = f"found {share:.3f} of what could be found ({how})"
        return result


READY = ("kvgate_tokenizer_state",)
READY_LABEL = 'state="local"'


def found_share(grown: Metrics, seen: dict[str, int]) -> tuple[float, str]:
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
