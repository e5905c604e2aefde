"""One engine in an index, and the prompt that tests of the index are about."""

from __future__ import annotations

from harness import kv_frames

from native._core import Applied, Index, Match, Prompt

SIZE = 16
IDS = list(range(1000, 1000 + 12 * SIZE))


class Engine:
    """One slot of an index of its own, or of the one given."""

    def __init__(self, index: Index | None = None) -> None:
        self.index = index or Index(1 << 24)
        self.slot = self.index.add_engine()

    def send(self, *events: kv_frames.Event) -> Applied:
        """One batch."""
        return self.index.apply(self.slot, kv_frames.batch(*events))

    def match(self, ids: list[int], lora: str | None = None, salt: str | None = None) -> Match:
        return self.index.match(Prompt.of_list(ids, lora, salt), [self.slot], 0.0)[0]

    def device(self, ids: list[int] = IDS, lora: str | None = None, salt: str | None = None) -> int:
        """Tokens of a prompt that goes on after these ids."""
        return self.match([*ids, 1], lora, salt).device


def blocks(count: int, since: int = 0) -> kv_frames.BlockStored:
    """Blocks of `IDS`."""
    return kv_frames.stored(IDS[: count * SIZE], SIZE, since=since)


def names(count: int = 12) -> list[int]:
    """Their hashes."""
    return kv_frames.chain(IDS[: count * SIZE], SIZE, scope=(None, None))
