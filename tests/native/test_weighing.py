"""Who is picked where much is sent at once: short turns, prompts of their own, balance alone."""

from __future__ import annotations

import itertools
from collections import Counter

from native._core import Ask, Fit, Index, Ledger, Prompt, Scorer, Ticket

NOW = 1000.0
_fresh = itertools.count(1)


class Fleet:
    def __init__(self, count: int) -> None:
        self.ledger = Ledger(1, count)
        self.ledger.bind(0)
        self.index = Index(1 << 24)
        self.slots = [self.index.add_engine() for _ in range(count)]
        engines = [self.ledger.add_engine() for _ in range(count)]
        same = [1] * count, [0] * count, [Fit("h100-8b-tp1")] * count, [0] * count
        self.scorer = Scorer(self.ledger, self.index, engines, self.slots, *same)
        self.all = b"\1" * count
        self.open: list[Ticket] = []

    def send(self, prompt: Prompt, seed: int, ask: Ask | None = None) -> int:
        """The place of the engine that gets it; it runs on."""
        choice = self.scorer.select(prompt, self.all, NOW, seed, ask)
        assert choice is not None
        self.index.predict(self.slots[choice.place], prompt, NOW, 5.0)
        self.open.append(choice.start(NOW))
        return choice.place


def distinct(tokens: int) -> Prompt:
    return Prompt.of_list([next(_fresh)] + [7] * (tokens - 1))


def test_short_turns_do_not_pile_up_where_their_prefix_lies() -> None:
    """What runs counts, however little of it is left to compute."""
    two = Fleet(2)
    prefix = list(range(1 << 20, (1 << 20) + 64))
    two.index.assume(two.slots[0], Prompt.of_list([*prefix, 1]), 100_000)
    turns = (Prompt.of_list([*prefix, *[next(_fresh)] * 50]) for _ in range(400))
    places = [two.send(turn, seed) for seed, turn in enumerate(turns)]
    counts = Counter(places)
    assert places[0] == 0 and min(counts.values()) >= 120, counts


def test_many_prompts_of_their_own_leave_nobody_without() -> None:
    five = Fleet(5)
    counts = Counter(five.send(distinct(2000), seed) for seed in range(256))
    assert min(counts[place] for place in range(5)) >= 40 and max(counts.values()) <= 62, counts


def test_without_the_weight_of_what_is_cached_only_load_counts() -> None:
    four = Fleet(4)
    prompt = Prompt.of_list(list(range(1 << 21, (1 << 21) + 4000)))
    four.index.assume(four.slots[2], prompt, 100_000)
    assert four.send(prompt, 0) == 2
    four.open.clear()
    counts = Counter(four.send(prompt, seed, Ask(overlap_weight=0.0)) for seed in range(100))
    assert all(20 <= counts[place] <= 30 for place in range(4)), counts
