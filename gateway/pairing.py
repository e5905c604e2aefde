"""Which engine computes a prompt and which answers it, by the least cost of each alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from native._core import Ask, Choice, Prompt, Scorer

BLOCK = 16


@dataclass(frozen=True, slots=True)
class Pair:
    """`prefill` None: the engine that answers computes the prompt, too."""

    decode: Choice
    prefill: Choice | None
    reason: str


def pair(
    scorer: Scorer, prompt: Prompt, masks: tuple[bytes, bytes], when: tuple[float, int],
    ask: Ask | None, force: int,
) -> Pair | None:
    """`masks`: of engines that may prefill, that may decode; `when`: now and a seed."""
    decode = scorer.select(prompt, masks[1], *when, ask)
    if decode is None:
        return None
    if force < 0:
        return Pair(decode, None, "never")
    if decode.uncached < BLOCK:
        return Pair(decode, None, "hit")
    others = bytearray(masks[0])
    others[decode.place] = 0
    prefill = scorer.select(prompt, bytes(others), *when, ask) if any(others) else None
    if prefill is None:
        return Pair(decode, None, "no_prefill")
    return Pair(decode, prefill, "forced" if force else "cheaper")
