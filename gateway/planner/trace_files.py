"""Files of recorded traffic -> the simulator's trace: arrivals, lengths, blocks that prompts share.

Four formats, told apart by their first line: Mooncake and Qwen-Bailian (JSON lines, with chain
hashes of 512 and 16 tokens), Azure and BurstGPT (CSV, without prefixes: no prompt shares anything).
Every row is checked; a bad one is named by file and line. Lengths and hashes only, never text.
"""

from __future__ import annotations

import csv
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from native._core import Trace

ROWS_MAX = 10_000_000
# Time stamps that move in steps of at least so much, nearly always, are a clock's ticks.
TICK_LEAST_S = 1.0
TICK_SHARE = 0.8
TICK_NEAR_S = 0.005
BLOCK_PLAIN = 16  # tokens; of traces without prefixes


class BadTrace(ValueError):
    """The file, the line and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """`tick_s`: arrivals were rounded down to so many seconds, and are to be spread over them; 0 =
    they were not. `skipped`: rows without an answer, which no engine would have had to work for.
    """

    trace: Trace
    name: str
    format: str
    tick_s: float
    skipped: int


@dataclass(frozen=True, slots=True)
class _Row:
    at_s: float
    input: int
    output: int
    blocks: list[int] | None  # None: shares nothing


def load(path: Path, limit: int = ROWS_MAX) -> Recorded:
    """The first `limit` requests of a file. Raises BadTrace, OSError."""
    with path.open("r", encoding="utf-8", newline="") as file:
        first = file.readline()
        file.seek(0)
        name, block, read = _format(path, first)
        rows: list[_Row] = []
        skipped = 0
        for number, row in read(file):
            try:
                made = row()
                _check(made, block)
            except (ValueError, KeyError, TypeError) as error:
                raise BadTrace(f"{path}:{number}: {error}") from error
            if made.output == 0:
                skipped += 1
            else:
                rows.append(made)
            if len(rows) == limit:
                break
    if not rows:
        raise BadTrace(f"{path}: no request with an answer")
    rows.sort(key=lambda row: row.at_s)
    tick_s = _tick([row.at_s for row in rows])
    return Recorded(_pack(rows, block), path.stem, name, tick_s, skipped)


Read = Callable[[Iterable[str]], Iterator[tuple[int, Callable[[], _Row]]]]


def _format(path: Path, first: str) -> tuple[str, int, Read]:
    if first.startswith("{"):
        try:
            row = orjson.loads(first)
        except ValueError as error:
            raise BadTrace(f"{path}:1: {error}") from error
        if "chat_id" in row:
            return "bailian", 16, _bailian
        if "hash_ids" in row:
            return "mooncake", 512, _mooncake
    elif first.startswith("TIMESTAMP,ContextTokens"):
        return "azure", BLOCK_PLAIN, _azure
    elif first.startswith("Timestamp,") and "Request tokens" in first:
        return "burstgpt", BLOCK_PLAIN, _burstgpt
    raise BadTrace(
        f"{path}:1: not a trace this knows\n    hint: Mooncake and Qwen-Bailian JSON lines, Azure "
        "(TIMESTAMP,ContextTokens,GeneratedTokens) and BurstGPT CSV are read"
    )


def _lines(file: Iterable[str], row: Callable[[Any], _Row]) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, lambda line=line: row(orjson.loads(line))


def _mooncake(file: Iterable[str]) -> Iterator[Any]:
    def row(found: Any) -> _Row:
        at_s = float(found["timestamp"]) / 1e3
        return _Row(at_s, found["input_length"], found["output_length"], found["hash_ids"])

    return _lines(file, row)


def _bailian(file: Iterable[str]) -> Iterator[Any]:
    def row(found: Any) -> _Row:
        at_s = float(found["timestamp"])
        return _Row(at_s, found["input_length"], found["output_length"], found["hash_ids"])

    return _lines(file, row)


def _azure(file: Iterable[str]) -> Iterator[Any]:
    start: list[datetime] = []

    def row(found: dict[str, str]) -> _Row:
        # Seven digits after the point, one more than Python reads.
        at = datetime.fromisoformat(found["TIMESTAMP"][:26])
        start[:] = start or [at]
        seconds = (at - start[0]).total_seconds()
        return _Row(seconds, int(found["ContextTokens"]), int(found["GeneratedTokens"]), None)

    for number, line in enumerate(csv.DictReader(file), 2):
        yield number, lambda line=line: row(line)


def _burstgpt(file: Iterable[str]) -> Iterator[Any]:
    def row(found: dict[str, str]) -> _Row:
        tokens = int(found["Request tokens"]), int(found["Response tokens"])
        return _Row(float(found["Timestamp"]), *tokens, None)

    for number, line in enumerate(csv.DictReader(file), 2):
        yield number, lambda line=line: row(line)


def _check(row: _Row, block: int) -> None:
    if not row.at_s >= 0:
        raise ValueError(f"it arrives at {row.at_s} s")
    if not (0 < row.input < 1 << 31 and 0 <= row.output < 1 << 31):
        raise ValueError(f"{row.input} tokens in and {row.output} out")
    wanted = -(-row.input // block)
    if row.blocks is not None and len(row.blocks) != wanted:
        found = len(row.blocks)
        raise ValueError(f"{row.input} tokens are {wanted} blocks of {block}, not {found}")


def _tick(times: list[float]) -> float:
    gaps = [b - a for a, b in pairwise(times) if b > a]
    if not gaps:
        return 0.0
    tick = float(Counter(round(gap, 1) for gap in gaps).most_common(1)[0][0])
    near = sum(abs(gap - tick) <= TICK_NEAR_S for gap in gaps)
    return tick if tick >= TICK_LEAST_S and near >= TICK_SHARE * len(gaps) else 0.0


def _pack(rows: list[_Row], block: int) -> Trace:
    blocks = array("Q")
    fresh = 1 << 63  # numbers for blocks that nobody shares
    counts = array("I")
    for row in rows:
        before = len(blocks)
        if row.blocks is None:
            count = -(-row.input // block)
            blocks.extend(range(fresh, fresh + count))
            fresh += count
        else:
            # Hashes may be signed; ours are not.
            blocks.extend(id & 0xFFFFFFFFFFFFFFFF for id in row.blocks)
        counts.append(len(blocks) - before)
    return Trace(
        block,
        array("d", (row.at_s for row in rows)).tobytes(),
        array("I", (row.input for row in rows)).tobytes(),
        array("I", (row.output for row in rows)).tobytes(),
        counts.tobytes(),
        blocks.tobytes(),
    )
