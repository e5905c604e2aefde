"""Metrics of routing by prompts, declared once, and the collector that fills them.

Counts are of all workers; what is said of tokenizers is what the worker that answers knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.kv.counts import HISTOGRAMS
from gateway.kv.routed import REASONS, SOURCES, TIERS
from gateway.kv.token_source import STATES
from gateway.metrics import Declared, add, buckets, families

if TYPE_CHECKING:
    from gateway.kv.counts import KvCounts
    from gateway.kv.tokens import TokenSources

PROMPTS = Declared(
    "kvgate_prompts_total", "counter", ("source",),
    "prompts read for routing, by where their token ids came from",
)  # fmt: skip
FALLBACKS = Declared(
    "kvgate_prompt_fallbacks_total", "counter", ("reason",),
    "prompts that were not read, or not exactly, by the reason",
)  # fmt: skip
TOKENIZE = Declared(
    "kvgate_prompt_seconds", "histogram", (),
    "time from a request's body to its token ids and hashes", "seconds",
)  # fmt: skip
DECIDE = Declared(
    "kvgate_pick_seconds", "histogram", (), "time to choose an engine by a prompt", "seconds"
)
ROUTED = Declared(
    "kvgate_kv_prompt_tokens_total", "counter", (), "tokens of prompts routed by them", "tokens"
)
MATCHED = Declared(
    "kvgate_kv_matched_tokens_total", "counter", ("tier",),
    "prompt tokens expected in the cache of the engine that was chosen; predicted = by a request"
    " sent there just before", "tokens",
)  # fmt: skip
COMPARED = Declared(
    "kvgate_kv_compared_total", "counter", ("equal",),
    "requests whose engine said what it found, by whether that was what had been expected",
)  # fmt: skip
COMPARED_TOKENS = Declared(
    "kvgate_kv_compared_tokens_total", "counter", ("kind",),
    "of these requests: tokens that were expected, and found (cached)", "tokens",
)  # fmt: skip
STATE = Declared(
    "kvgate_tokenizer_state", "gauge", ("upstream", "state"),
    "1 for where the upstream's token ids come from now: local, engine, bytes, or loading",
)  # fmt: skip
AGREES = Declared(
    "kvgate_tokenizer_agrees", "gauge", ("upstream",),
    "1 where the ids made here were those of an engine, 0 where not, -1 where not compared",
)  # fmt: skip
CACHE = Declared(
    "kvgate_tokenizer_cache_bytes", "gauge", ("upstream",),
    "texts and ids that the tokenizer keeps, in this worker", "bytes",
)  # fmt: skip

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Declared))
_AGREES = {"agrees": 1, "differs": 0}


class KvCollector(Collector):
    def __init__(self, counts: KvCounts, tokens: TokenSources) -> None:
        self._counts = counts
        self._tokens = tokens

    def collect(self) -> Iterator[Metric]:
        made = families(ALL)
        count = self._counts.count
        for source in SOURCES:
            add(made, PROMPTS, (source,), count(f"source/{source}"))
        for reason in REASONS:
            add(made, FALLBACKS, (reason,), count(f"reason/{reason}"))
        for metric, name in ((TOKENIZE, "tokenize"), (DECIDE, "decide")):
            counts, total = self._counts.histogram(name)
            rows = buckets(HISTOGRAMS[name], counts)
            made[metric.name].add_metric((), rows, total)  # type: ignore[attr-defined]
        add(made, ROUTED, (), count("prompt_tokens"))
        for tier in TIERS:
            add(made, MATCHED, (tier,), count(f"matched/{tier}"))
        equal = count("equal")
        add(made, COMPARED, ("yes",), equal)
        add(made, COMPARED, ("no",), count("compared") - equal)
        add(made, COMPARED_TOKENS, ("expected",), count("compared_predicted"))
        add(made, COMPARED_TOKENS, ("cached",), count("compared_cached"))
        self._tokenizers(made)
        yield from made.values()

    def _tokenizers(self, made: dict[str, Metric]) -> None:
        for upstream, source in self._tokens.by_upstream.items():
            for state in STATES:
                add(made, STATE, (upstream, state), int(state == source.state))
            add(made, AGREES, (upstream,), _AGREES.get(source.verdict, -1))
            if source.vocabulary is not None:
                held = source.vocabulary.tokenizer.stats()["bytes"]
                add(made, CACHE, (upstream,), held)
