"""Inputs for fuzzing: seeds, changed by seeded random edits that know the words of a grammar.

Invariant: the same seed gives the same inputs, so that a finding can be repeated by its number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

INPUT_MAX = 32_768


class Mutator:
    """`seeds` are well-formed or interesting inputs, `words` the tokens that edits put in."""

    def __init__(self, seed: int, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
        self.rng = random.Random(seed)
        self.seeds = list(seeds)
        self.words = list(words)

    def next(self) -> bytes:
        data = bytearray(self.rng.choice(self.seeds))
        for _ in range(self.rng.choice((0, 1, 1, 2, 2, 3, 5, 9))):
            self._edit(data)
        return bytes(data[:INPUT_MAX])

    def cuts(self, size: int) -> list[int]:
        """Sorted offsets at which an input of `size` bytes is cut; sometimes all, or none."""
        mood = self.rng.randrange(6)
        if mood == 0 or size < 2:
            return []
        if mood == 1 and size < 600:
            return list(range(1, size))
        count = min(size - 1, self.rng.choice((1, 2, 3, 8, 30)))
        return sorted(self.rng.sample(range(1, size), count))

    def _edit(self, data: bytearray) -> None:
        rng = self.rng
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 16, 200)))
        kind = rng.randrange(8)
        if kind == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = rng.choice(self.words)
        elif kind == 3:
            data[at:end] = rng.choice(self.words)
        elif kind == 4:
            data[at:at] = data[at:end]
        elif kind == 5 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 6:
            other = rng.choice(self.seeds)
            start = rng.randrange(len(other) + 1)
            data[at:] = other[start:]
        else:
            data[at:end] = bytes(
                rng.choice(b'\r\n\t :;,0aF"{}[]\\') for _ in range(rng.randrange(4))
            )


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """`data` cut at the given offsets; no empty pieces."""
    edges = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]
