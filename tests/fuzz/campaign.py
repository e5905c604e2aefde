"""Runs one fuzz target for a time, or over its corpus. A finding is kept in the corpus and raised.

Invariant: whatever was found once is replayed by `tests/native/test_corpus.py` for ever.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.mutation import Mutator

CORPUS = Path(__file__).resolve().parent / "corpus"
Check = Callable[[bytes, Sequence[int]], Awaitable[None]]


@dataclass(frozen=True)
class Target:
    """`check(data, cuts)` raises AssertionError when an oracle is violated; it needs `loop`."""

    name: str
    check: Check
    seeds: Sequence[bytes]
    words: Sequence[bytes]
    loop: Callable[[], Any]

    @property
    def folder(self) -> Path:
        return CORPUS / self.name

    def kept(self) -> list[Path]:
        return sorted(self.folder.glob("*.bin"))


class Finding(AssertionError):
    """An input that violates an oracle; where it is kept, and how to run it again."""


def replay(target: Target, data: bytes, seed: int = 0) -> None:
    """One input, uncut and under several cuts."""
    mutator = Mutator(seed, [data or b" "], [b""])
    _run(target, [(data, cuts) for cuts in ([], *(mutator.cuts(len(data)) for _ in range(12)))])


def hunt(target: Target, seconds: float, seed: int) -> int:
    """Fuzzes for `seconds`; returns how many inputs were tried. Raises Finding."""
    kept = [path.read_bytes() for path in target.kept()]
    mutator = Mutator(seed, [*target.seeds, *kept], target.words)
    deadline = time.monotonic() + seconds

    def inputs() -> Any:
        while time.monotonic() < deadline:
            data = mutator.next()
            yield data, mutator.cuts(len(data))

    return _run(target, inputs())


def _run(target: Target, inputs: Any) -> int:
    loop = target.loop()
    try:
        return int(loop.run_until_complete(_all(target, inputs)))
    finally:
        loop.close()


async def _all(target: Target, inputs: Any) -> int:
    count = 0
    for data, cuts in inputs:
        try:
            await target.check(data, cuts)
        except Exception as error:
            file = _keep(target, data)
            raise Finding(
                f"{error!r}\n  input {data[:600]!r}\n  cuts {list(cuts)[:50]}\n  kept as {file}"
            ) from error
        count += 1
    return count


def _keep(target: Target, data: bytes) -> str:
    """The corpus file that holds `data`, made where there is none."""
    for path in target.kept():
        if path.read_bytes() == data:
            return path.name
    target.folder.mkdir(parents=True, exist_ok=True)
    file = target.folder / f"found-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    file.write_bytes(data)
    return file.name


def main(target: Target) -> None:
    """The command line of every target."""
    parser = argparse.ArgumentParser(description=f"Fuzzes the {target.name}.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    for path in target.kept():
        replay(target, path.read_bytes())
    started = time.monotonic()
    count = hunt(target, options.seconds, options.seed)
    took = time.monotonic() - started
    print(f"{target.name}: {count} inputs in {took:.0f} s, seed {options.seed}, nothing found")
