"""What a server says of itself: its models and adapters, the longest context, how much its KV cache
holds. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# `vllm:cache_config_info{block_size="16",num_gpu_blocks="27640",...} 1.0`
_INFO = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\} ", re.MULTILINE)
TOKENS_MAX = 10**12  # what is above is nonsense
_LABEL = re.compile(rb'(\w+)="([0-9]{1,15})"')


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one server. `context_tokens` and `capacity_tokens`: 0 = it did not say."""

    models: frozenset[str]
    context_tokens: int = 0
    capacity_tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "models": sorted(self.models),
            "context": self.context_tokens,
            "capacity": self.capacity_tokens,
        }

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Facts | None:
        """None where it has another form."""
        match value:
            case {"models": list(names), "context": int(context), "capacity": int(capacity)}:
                models = frozenset(name for name in names if isinstance(name, str))
                return cls(models, context, capacity)
        return None


def capacity_of(page: bytes) -> int:
    """KV tokens of one rank, by an engine's metrics; 0 where they do not tell. Pure."""
    found = _INFO.search(page)
    if found is None:
        return 0
    labels = {name: int(value) for name, value in _LABEL.findall(found[1])}
    told = labels.get(b"kv_cache_size_tokens", 0)
    told = told or labels.get(b"num_gpu_blocks", 0) * labels.get(b"block_size", 0)
    return told if told <= TOKENS_MAX else 0


def context_of(cards: Iterable[Mapping[str, Any]]) -> int:
    """The longest context of a server's models; 0 where none is told. Pure."""
    told = (card.get("max_model_len") for card in cards)
    return max((n for n in told if isinstance(n, int) and 0 < n <= TOKENS_MAX), default=0)
