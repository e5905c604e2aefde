"""Which token the simulated model says next: a pure function of all tokens before it and a seed.

Every engine gives the same answer to the same prompt at temperature 0, a reply continued on another
engine goes on as it would have here, and a context whose cache blocks hold the wrong contents
gives another text: equality of outputs is therefore a check of the whole path.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence

from . import tokens

_pack_one = struct.Struct("<I").pack


def digest(ids: Sequence[int], start: int = 0) -> int:
    """Running digest of token ids: digest(a + b) == digest(b, digest(a))."""
    return zlib.crc32(struct.pack(f"<{len(ids)}I", *ids), start)


def extend(state: int, token: int) -> int:
    return zlib.crc32(_pack_one(token), state)


def next_token(state: int, last: int, seed: int) -> int:
    """The token after a context with digest `state` that ends in `last`."""
    mixed = ((state ^ seed) * 0x9E3779B1) & 0xFFFFFFFF
    mixed ^= mixed >> 15
    if last > 1023 and mixed & 7 == 0 and last < 4096:
        return tokens.FULL_STOP
    return tokens.word_token(mixed >> 8, opening=last == tokens.ASSISTANT)


def block_digests(ids: Sequence[int], length: int, block_size: int) -> list[int]:
    """What each cache block must hold for the first `length` tokens: the digest up to its end."""
    state, out = 0, []
    for start in range(0, length, block_size):
        state = digest(ids[start : min(start + block_size, length)], state)
        out.append(state)
    return out


def corrupt(state: int, wrong: Iterable[int]) -> int:
    """The digest of a context some of whose blocks hold other contents than they should."""
    for content in wrong:
        state = extend(state ^ 0x5BD1E995, content & 0xFFFFFFFF)
    return state
