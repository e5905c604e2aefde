"""A part of a recorded trace, made small enough for simulated engines on two cores, and still as
heavy for them.

A block of 512 tokens becomes one of 16, and whatever costs by the token costs 32 times as much: an
engine computes a prompt, fills its memory and slows down as it would have with the whole of it.
Answers are 8 times shorter, not 32 times, or they would end after a few steps. The same requests go
to real engines over HTTP (as token ids) and to the simulator.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from native._core import Fit, Trace  # noqa: E402

BLOCK = 16  # tokens
SMALLER = 32  # 512 / BLOCK
ANSWERS = 8  # times shorter
TICK_S = 3.0  # arrivals in the trace are rounded down to it
FIRST_ID = 1000  # token ids of block n: FIRST_ID + n * BLOCK and those after it
HEAD = 3  # blocks that stand for a prompt's beginning


@dataclass(frozen=True, slots=True)
class Call:
    """One request: when (s of the trace), its blocks, tokens in and out."""

    at_s: float
    blocks: tuple[int, ...]
    input: int
    output: int

    def ids(self) -> list[int]:
        found = [FIRST_ID + b * BLOCK + at for b in self.blocks for at in range(BLOCK)]
        return found[: self.input]

    def head(self) -> str:
        return "-".join(map(str, self.blocks[:HEAD]))


@dataclass(frozen=True, slots=True)
class Machine:
    """An engine of the rig: a profile with costs per token made larger, and its memory."""

    profile: str = "h100-70b-tp4"
    kv_tokens: int = 461_000  # of the engine that it stands for
    chunk: int = 8192

    @property
    def capacity(self) -> int:
        return self.kv_tokens // SMALLER

    @property
    def chunk_tokens(self) -> int:
        return self.chunk // SMALLER

    def constants(self, times: float = 1.0) -> dict[str, float]:
        """Constants of the step-time model, in ms; `times`: a clock that goes slower."""
        own = dict(Fit(self.profile).values())
        more = {"b": SMALLER, "c": SMALLER**2, "hk": SMALLER}
        return {name: value * more.get(name, 1) * times for name, value in own.items()}

    def fit(self) -> Fit:
        return Fit(self.profile, list(self.constants().items()), self.chunk_tokens)


def read(path: Path, count: int, seed: int = 0) -> list[Call]:
    """The first `count` requests of a Mooncake file, arrivals spread over their ticks."""
    draw = random.Random(seed)
    found = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            at_s = row["timestamp"] / 1e3 + draw.random() * TICK_S
            tokens = -(-row["input_length"] // SMALLER)
            answer = max(2, round(row["output_length"] / ANSWERS))
            found.append(Call(at_s, tuple(row["hash_ids"]), tokens, answer))
            if len(found) == count:
                break
    return sorted(found, key=lambda call: call.at_s)


def trace(calls: list[Call]) -> Trace:
    """The same for the simulator."""
    first = calls[0].at_s
    return Trace(
        BLOCK,
        array("d", [call.at_s - first for call in calls]).tobytes(),
        array("I", [call.input for call in calls]).tobytes(),
        array("I", [call.output for call in calls]).tobytes(),
        array("I", [len(call.blocks) for call in calls]).tobytes(),
        array("Q", [b for call in calls for b in call.blocks]).tobytes(),
    )
