"""What the prefix index means, in plain Python: the oracle of its tests, never used to serve."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import lcm

from native.reference_engine import TIERS, Engine, Group, Name

BLOCK_SIZE = 16  # of an engine that has not said


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids and their scope."""

    ids: tuple[int, ...]
    lora: str | None = None
    salt: str | None = None

    def blocks(self, size: int) -> list[Name]:
        """The names of all full blocks."""
        found: list[Name] = []
        last: Name = (self.lora or None, self.salt or None)
        for start in range(0, len(self.ids) - size + 1, size):
            last = (last, self.ids[start : start + size], ())
            found.append(last)
        return found

    def creditable(self, size: int) -> list[Name]:
        """Those an engine may not have to compute: never the last token's."""
        return self.blocks(size)[: max(len(self.ids) - 1, 0) // size]


@dataclass(slots=True)
class Slot:
    """An engine, and the blocks it is taken to hold without having said so."""

    engine: Engine = field(default_factory=Engine)
    assumed: list[Name] = field(default_factory=list)  # least recently used first

    @property
    def size(self) -> int:
        """Tokens per block."""
        return self.engine.size or BLOCK_SIZE

    def assume(self, prompt: Prompt, capacity: int) -> None:
        size = self.size
        room = capacity // size
        blocks = prompt.blocks(size)[:room]
        kept = [block for block in self.assumed if block not in blocks]
        self.assumed = [*kept, *reversed(blocks)][max(len(kept) + len(blocks) - room, 0) :]

    def match(self, prompt: Prompt) -> dict[str, int]:
        size = self.size
        blocks = prompt.creditable(size)
        found = dict.fromkeys(TIERS, 0)
        whole = [group for group in self.engine.groups.values() if group.needs is None]
        tails = [group for group in self.engine.groups.values() if group.needs is not None]
        whole, tails = (whole, tails) if whole else (tails, [])
        if whole:
            found["device"] = self._device(blocks, whole, tails) * size
        if len(whole) == 1 and not tails:
            for tier in self._below(blocks[found["device"] // size :], whole[0]):
                found[tier] += size
        assumed = [*(block in self.assumed for block in blocks), False].index(False)
        if assumed * size > sum(found.values()):
            found = dict.fromkeys(TIERS, 0) | {"device": assumed * size}
        return found

    def _device(self, blocks: list[Name], whole: list[Group], tails: list[Group]) -> int:
        count = 0
        while count < len(blocks) and all(group.has(blocks[count], "device") for group in whole):
            count += 1
        return next((end for end in range(count, 0, -1) if self._ends(blocks[:end], tails)), 0)

    def _ends(self, blocks: list[Name], tails: list[Group]) -> bool:
        for group in tails:
            step = lcm(group.size, self.size) // self.size
            need = max(-(-(group.needs or 0) // (step * self.size)), 1)
            seen = blocks[step - 1 :: step][-need:]
            if len(blocks) % step or not all(group.has(block, "device") for block in seen):
                return False
        return True

    def _below(self, blocks: list[Name], group: Group) -> Iterator[str]:
        for block in blocks:
            tier = next((tier for tier in TIERS[1:] if group.has(block, tier)), None)
            if tier is None:
                return
            yield tier


class Index:
    """Engines by slot, and the prompts sent to them a moment ago."""

    def __init__(self, engines: int) -> None:
        self.slots = [Slot() for _ in range(engines)]
        self.sent: list[tuple[int, list[Name], float]] = []  # slot, blocks, until

    def clear(self, slot: int) -> None:
        self.slots[slot] = Slot()
        self.forget(slot)

    def forget(self, slot: int) -> None:
        """What was sent to the engine has not come, or is gone: it said that it has nothing."""
        self.sent = [(s, blocks, 0.0 if s == slot else until) for s, blocks, until in self.sent]

    def predict(self, slot: int, prompt: Prompt, until: float) -> int:
        """A prompt was sent; blocks are those of the size that is known by then. Its number."""
        self.sent.append((slot, prompt.blocks(self.slots[slot].size), until))
        return len(self.sent) - 1

    def settle(self, number: int, at: float) -> None:
        """Its request is over: the engine's events say what is there."""
        slot, blocks, until = self.sent[number]
        self.sent[number] = slot, blocks, min(until, at)

    def match(self, prompt: Prompt, slot: int, now: float) -> dict[str, int]:
        """Tokens by tier, and `predicted` beyond them."""
        found, size = self.slots[slot].match(prompt), self.slots[slot].size
        blocks = prompt.creditable(size)
        sent = [there for where, there, until in self.sent if where == slot and until > now]
        same = [[a == b for a, b in zip(there, blocks, strict=False)] for there in sent]
        best = max(([*run, False].index(False) * size for run in same), default=0)
        return found | {"predicted": max(best - sum(found.values()), 0)}
