"""Events of real vLLM 0.32 engines as they were written down, made whole again.

In the text files a line is: time, topic, sequence, rank, event; long lists are shortened to
`<length> [first, second]`. Prompts were arithmetic, and block hashes follow from them by vLLM's own
rule, so what was left out can be put back, and whatever is left of it says if that was right.
"""

from __future__ import annotations

import ast
import hashlib
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import kv_frames

VECTORS = Path(__file__).parents[1] / "vectors"
SIZE = 32
SHORT = re.compile(r"<(\d+)> (\[.*\])$")


def cbor(value: Any) -> bytes:
    """Canonical CBOR (RFC 8949) of what a block hash is made of."""

    def head(kind: int, number: int) -> bytes:
        for width, code in ((0, number), (1, 24), (2, 25), (4, 26)):
            if number < (24 if width == 0 else 1 << 8 * width):
                return bytes([kind << 5 | code]) + (number.to_bytes(width, "big") if width else b"")
        raise ValueError(number)

    match value:
        case None:
            return b"\xf6"
        case int():
            return head(0, value)
        case bytes():
            return head(2, len(value)) + value
        case str():
            return head(3, len(value)) + value.encode()
        case _:
            return head(4, len(value)) + b"".join(map(cbor, value))


def hashes(
    tokens: Sequence[int], salt: str | None = None, as_bytes: bool = False
) -> list[kv_frames.Hash]:
    """vLLM's block hashes: SHA-256 over (parent, tokens, extra keys).

    As the recordings have them: pickled and of 64 bits, or CBOR and all 32 bytes (`as_bytes`).
    (`hash_block_tokens`, `maybe_convert_block_hash` and `DEFAULT_NONE_HASH_SEED` in
    `vllm/v1/core/kv_cache_utils.py`, `vllm/utils/hashing.py`)
    """

    def digest(value: Any) -> bytes:
        written = cbor(value) if as_bytes else pickle.dumps(value, protocol=5)
        return hashlib.sha256(written).digest()

    last = digest("vllm-none-hash")
    found: list[kv_frames.Hash] = []
    for start in range(0, len(tokens) - SIZE + 1, SIZE):
        extra = (("cache_salt", salt),) if salt and start == 0 else None
        last = digest((last, tuple(tokens[start : start + SIZE]), extra))
        found.append(last if as_bytes else int.from_bytes(last[-8:], "big"))
    return found


def steps(first: int, step: int, count: int, base: int = 10) -> list[int]:
    """A prompt of the recordings."""
    return [base + (first - base + step * at) % 30_000 for at in range(count)]


@dataclass(frozen=True, slots=True)
class Line:
    """One event."""

    seq: int
    rank: int
    event: kv_frames.BlockStored | kv_frames.BlockRemoved | kv_frames.AllBlocksCleared

    @property
    def payload(self) -> bytes:
        """A batch of this event alone."""
        return kv_frames.batch(self.event, rank=self.rank)


class Capture:
    """A text file of events, or those of its `lines` that are about known prompts."""

    def __init__(
        self,
        name: str,
        prompts: Sequence[list[int]],
        as_bytes: bool = False,
        lines: Sequence[int] | None = None,
    ) -> None:
        self._chains = [(prompt, hashes(prompt, as_bytes=as_bytes)) for prompt in prompts]
        self._at = {
            name: (prompt, chain, at)
            for prompt, chain in self._chains
            for at, name in enumerate(chain)
        }
        text = (VECTORS / name).read_text().splitlines()
        self.lines = [self._line(text[at]) for at in lines or range(len(text))]

    def _line(self, line: str) -> Line:
        head, body = line.split(" {", 1)
        fields = ast.literal_eval("{" + body)
        kind = fields.pop("type")
        if kind == "BlockStored":
            self._stored(fields)
        elif kind == "BlockRemoved":
            self._removed(fields)
        words = head.split()
        return Line(int(words[2]), int(words[4]), getattr(kv_frames, kind)(**fields))

    def _stored(self, fields: dict[str, Any]) -> None:
        parent, size = fields["parent_block_hash"], fields["block_size"]
        count, tokens = shortened(fields["token_ids"])
        if parent is None:
            prompt, chain, at = next((*it, 0) for it in self._chains if it[0][:2] == tokens)
        else:
            prompt, chain, at = self._at[parent]
            at += 1
        fields["token_ids"] = prompt[at * size :][:count]
        assert fields["token_ids"][:2] == tokens
        count, seen = shortened(fields["block_hashes"])
        fields["block_hashes"] = chain[at:][:count]
        assert fields["block_hashes"][: len(seen)] == seen
        if "extra_keys" in fields:
            fields["extra_keys"] = [None] * count

    def _removed(self, fields: dict[str, Any]) -> None:
        """Blocks leave from the end of a prompt on."""
        count, seen = shortened(fields["block_hashes"])
        _, chain, at = self._at[seen[0]]
        fields["block_hashes"] = [chain[at - back] for back in range(count)]
        assert fields["block_hashes"][: len(seen)] == seen


def shortened(value: Any) -> tuple[int, list[Any]]:
    """A list's length, and as much of it as was written down."""
    if not isinstance(value, str):
        return len(value), value
    match = SHORT.match(value)
    assert match
    return int(match[1]), ast.literal_eval(match[2])
