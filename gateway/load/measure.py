"""What one request's times say: TTFT, ITL, TPOT, E2EL.

Invariant: pure, and the only place where a client of ours defines them. Payload is generated output
(content, reasoning, arguments of tool calls); role-only, empty and usage events are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

End = Literal["completed", "failed", "cancelled", "cut"]
_TEXTS = ("content", "reasoning", "reasoning_content", "text")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. Times in seconds of one clock. `due_s`: when it should have gone out;
    `chunks_s`: events with payload, in order; `choice_s`: the first event with a choice, payload or
    not; `tokens` of the answer as the engine said, -1 = it did not. `cut`: the run ended first.
    """

    due_s: float
    chunks_s: Sequence[float]
    end: End = "completed"
    tokens: int = -1
    choice_s: float = -1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds; None = does not apply. `ttft_choice_s` counts from the first event with a choice, as
    `vllm bench serve` does. `counted`: the engine gave no number of tokens: events stand for them.
    """

    end: End
    ttft_s: float | None
    ttft_choice_s: float | None
    itl_s: tuple[float, ...]
    tpot_s: float | None
    e2el_s: float | None
    tokens: int
    counted: bool


def measure(asked: Asked) -> Measured:
    chunks = asked.chunks_s
    counted = asked.tokens < 0
    tokens = len(chunks) if counted else asked.tokens
    choice_s = asked.choice_s - asked.due_s if asked.choice_s >= 0 else None
    if not chunks:
        return Measured(asked.end, None, choice_s, (), None, None, tokens, counted)
    spread_s = chunks[-1] - chunks[0]
    return Measured(
        end=asked.end,
        ttft_s=chunks[0] - asked.due_s,
        ttft_choice_s=choice_s,
        itl_s=tuple(b - a for a, b in pairwise(chunks)),
        tpot_s=spread_s / (tokens - 1) if tokens > 1 else None,
        e2el_s=chunks[-1] - asked.due_s,
        tokens=tokens,
        counted=counted,
    )


def has_payload(event: dict[str, Any]) -> bool:
    """Whether an event of a stream of chat or text completions carries output."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or choice
        if any(delta.get(name) for name in _TEXTS):
            return True
        for call in delta.get("tool_calls") or ():
            if (call.get("function") or {}).get("arguments"):
                return True
    return False
