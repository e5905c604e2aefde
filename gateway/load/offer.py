"""What is to be sent, and when: requests of a recorded trace, or of a mix drawn from a seed.

Invariant: times are fixed before the first request goes out, so no slow answer can delay the next
one. The same seed gives the same requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

REQUESTS_MAX = 10_000_000


@dataclass(frozen=True, slots=True)
class Offer:
    """One request: seconds after the start, prompt and answer tokens, and the blocks that its
    prompt shares with others (() = none)."""

    at_s: float
    input: int
    output: int
    blocks: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Offers:
    """Requests in order of time, the first at 0. `block`: tokens of a block."""

    requests: Sequence[Offer]
    block: int = 16

    @property
    def span_s(self) -> float:
        return self.requests[-1].at_s

    @property
    def rate(self) -> float:
        """Requests a second: gaps between them over the time they take; 0 for one request."""
        return (len(self.requests) - 1) / self.span_s if self.span_s else 0.0

    def at_rate(self, rate: float) -> Offers:
        """The same requests, faster or slower."""
        return self.by(rate / self.rate if self.rate else 1.0)

    def by(self, speed: float) -> Offers:
        return replace(
            self, requests=[replace(one, at_s=one.at_s / speed) for one in self.requests]
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens drawn from a law: lognormal of a mean and a CV, or as many from `low` to `high`."""

    low: int
    high: int
    cv: float = 0.0

    def draw(self, chance: random.Random) -> int:
        if not self.cv:
            return chance.randint(self.low, self.high)
        spread = math.log1p(self.cv * self.cv)
        drawn = chance.lognormvariate(math.log(self.low) - spread / 2, math.sqrt(spread))
        return max(1, min(round(drawn), self.high))


@dataclass(frozen=True, slots=True)
class Mix:
    """A synthetic load. `cv` of the gaps between arrivals, gamma distributed: 1 = Poisson, 0 = as
    even as a clock. The first `prefix` tokens of a prompt are those of one of `prefixes` texts.
    """

    rate: float
    requests: int
    input: Lengths
    output: Lengths
    cv: float = 1.0
    prefix: int = 0
    prefixes: int = 1

    def offers(self, seed: int, block: int = 16) -> Offers:
        chance = random.Random(seed)
        at_s, found = 0.0, []
        fresh = self.prefixes * (self.prefix // block)  # numbers of blocks that nobody shares
        for _ in range(self.requests):
            input_, output = self.input.draw(chance), self.output.draw(chance)
            shared = min(self.prefix, input_) // block
            first = chance.randrange(self.prefixes) * (self.prefix // block)
            own = -(-input_ // block) - shared
            blocks = (*range(first, first + shared), *range(fresh, fresh + own))
            fresh += own
            found.append(Offer(at_s, input_, output, blocks))
            at_s += self._gap(chance)
        return Offers(found, block)

    def _gap(self, chance: random.Random) -> float:
        if not self.cv:
            return 1 / self.rate
        shape = 1 / (self.cv * self.cv)
        return chance.gammavariate(shape, 1 / (shape * self.rate))


def spread(times: Sequence[float], tick_s: float, seed: int) -> list[float]:
    """Arrivals that were rounded down to a clock's ticks, spread over them."""
    chance = random.Random(seed)
    return [at + tick_s * chance.random() for at in times]
