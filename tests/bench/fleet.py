"""A fleet of engines for benchmarks: which prompts they have cached, and the frames that say so.

Blocks of 16 tokens. Prompts come in families that share a system prompt, a prompt lies on one
engine or on a few, as under a router that follows prefixes. Engine hashes are random numbers:
what an engine hashes with is of no interest to an index that takes them as names.
"""

from __future__ import annotations

import array
import random
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import kv_frames

BLOCK = 16
CHUNK = 128  # blocks of one prefill step of 2048 tokens


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt's tokens, and the names its blocks have in every engine."""

    tokens: array.array[int]
    names: list[int]

    def packed(self, more: int = 0) -> bytes:
        """Its ids, and as many new ones after them."""
        rng = random.Random(self.names[-1])
        tail = array.array("I", [rng.randrange(1000, 128_000) for _ in range(more)])
        return self.tokens.tobytes() + tail.tobytes()


class Writer:
    """Makes conversations of a given length whose first blocks a family shares."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def ids(self, blocks: int) -> array.array[int]:
        """Ids as of a vocabulary of 128k; most take three or five bytes on the wire."""
        words = array.array("I", self._rng.randbytes(4 * BLOCK * blocks))
        return array.array("I", [word % 128_000 for word in words])

    def names(self, blocks: int) -> list[int]:
        return [self._rng.getrandbits(64) for _ in range(blocks)]

    def start(self, blocks: int) -> Conversation:
        return Conversation(self.ids(blocks), self.names(blocks))

    def extend(self, start: Conversation, blocks: int) -> Conversation:
        """`start` and as many blocks of its own."""
        return Conversation(start.tokens + self.ids(blocks), start.names + self.names(blocks))


def frames(talk: Conversation, since: int = 0) -> list[bytes]:
    """The batches of a prefill in chunks, from block `since` on."""
    out = []
    for at in range(since, len(talk.names), CHUNK):
        names = talk.names[at : at + CHUNK]
        event = kv_frames.BlockStored(
            block_hashes=list(names),
            parent_block_hash=talk.names[at - 1] if at else None,
            token_ids=talk.tokens[at * BLOCK : (at + len(names)) * BLOCK].tolist(),
            block_size=BLOCK,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            extra_keys=[None] * len(names),
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )
        out.append(kv_frames.batch(event))
    return out


def eviction(talk: Conversation, since: int = 0) -> list[bytes]:
    """Batches that take the same blocks away, one event a block, the last block first."""
    names = talk.names[since:][::-1]
    chunks = [names[at : at + CHUNK] for at in range(0, len(names), CHUNK)]
    return [kv_frames.batch(*map(kv_frames.removed, chunk)) for chunk in chunks]
