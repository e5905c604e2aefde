"""How traces are written: one reader per format, told apart by a file's first line.

Mooncake, aiperf's and vLLM's timed traces share names of fields; Qwen-Bailian's has chats; Azure
and BurstGPT are CSV without prefixes. Our own recording is Mooncake's form behind a line that names
it (docs/workload.md). A reader yields rows, or raises at the row that cannot be.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

# What is read, a folder of ServeGen's by `servegen`.
FORMATS = (
    "kvgate's own, Mooncake, aiperf, vLLM's timed and Qwen-Bailian JSON lines, Azure "
    "(TIMESTAMP,ContextTokens,GeneratedTokens) and BurstGPT CSV, folders of ServeGen's clients"
)
VERSION = 1
BLOCK_PLAIN = 16  # tokens; of traces without prefixes
BLOCK_MOONCAKE = 512
BLOCK_BAILIAN = 16
# Sizes that a trace's blocks may have, where it does not say.
BLOCKS = (512, 16, 256, 128, 64, 32, 1024)


@dataclass(frozen=True, slots=True)
class Row:
    """One request. `blocks`: chain hashes, None: what it shares is not known. `client`, `session`:
    who asked, and in which conversation; "" = not said."""

    at_s: float
    input: int
    output: int
    blocks: list[int] | None = None
    client: str = ""
    session: str = ""


# (line, what makes its row)
Read = Callable[[Iterable[str]], Iterator[tuple[int, Callable[[], Row]]]]


@dataclass(frozen=True, slots=True)
class Format:
    """`is_open`: the last block of a prompt may be left out where it is not full."""

    name: str
    block: int
    read: Read
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """What a user says that a file does not: 0 = it is found out. `unit_s`: of time stamps."""

    block: int = 0
    unit_s: float = 0.0


def of(first: str, told: Told) -> Format | None:
    """By the first line; None for none that is known. Raises ValueError for a broken one."""
    if first.startswith("{"):
        return _json(orjson.loads(first), told)
    if first.startswith("TIMESTAMP,ContextTokens"):
        return Format("azure", BLOCK_PLAIN, _azure)
    if first.startswith("Timestamp,") and "Request tokens" in first:
        return Format("burstgpt", BLOCK_PLAIN, _burstgpt)
    return None


def _json(row: dict[str, Any], told: Told) -> Format | None:
    if "kvgate_trace" in row:
        if row["kvgate_trace"] != VERSION:
            raise ValueError(f"version {row['kvgate_trace']} of kvgate's traces is not read")
        block = row.get("block")
        if not isinstance(block, int) or not 0 < block <= 1 << 16:
            raise ValueError(f"blocks cannot be of {block!r} tokens")
        return Format("kvgate", block, lambda file: _timed(_rotated(file), 1e-3), is_open=True)
    if "chat_id" in row:
        return Format("bailian", BLOCK_BAILIAN, _bailian)
    if "input_length" not in row:
        return None
    unit_s = told.unit_s or 1e-3
    block = told.block or _block(row)
    name = "mooncake" if block == BLOCK_MOONCAKE else "timed"
    if "session_id" in row or "delay" in row:
        name = "aiperf"
    return Format(name, block, lambda file: _timed(file, unit_s))


def _block(row: dict[str, Any]) -> int:
    """Tokens of a block by the number of hashes; of Mooncake's size where several would do."""
    hashes = row.get("hash_ids")
    if not hashes:
        return BLOCK_MOONCAKE
    tokens, count = int(row["input_length"]), len(hashes)
    return next((size for size in BLOCKS if -(-tokens // size) == count), BLOCK_MOONCAKE)


def _lines(file: Iterable[str], row: Callable[[Any], Row]) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, lambda line=line: row(_object(line))


def _object(line: str) -> dict[str, Any]:
    found = orjson.loads(line)
    if not isinstance(found, dict):
        raise TypeError("it is not a JSON object")
    return found


def _rotated(file: Iterable[str]) -> Iterator[str]:
    """Without header lines: files that were put together have several."""
    return ("" if line.startswith('{"kvgate_trace"') else line for line in file)


def _timed(file: Iterable[str], unit_s: float) -> Iterator[Any]:
    ends: dict[str, float] = {}  # of sessions whose turns say a delay in place of a time

    def row(found: Any) -> Row:
        session = str(found.get("session_id") or found.get("session") or "")
        if found.get("timestamp") is not None:
            at_s = float(found["timestamp"]) * unit_s
        else:
            at_s = ends[session] + float(found["delay"]) * unit_s
        ends[session] = at_s if session else 0.0
        tokens = found["input_length"], found["output_length"]
        return Row(at_s, *tokens, found.get("hash_ids"), str(found.get("client") or ""), session)

    return _lines(file, row)


def _bailian(file: Iterable[str]) -> Iterator[Any]:
    roots: dict[int, str] = {}

    def row(found: Any) -> Row:
        at_s = float(found["timestamp"])
        parent = found.get("parent_chat_id", -1)
        session = roots.get(parent) or str(found["chat_id"])
        roots[found["chat_id"]] = session
        return Row(at_s, found["input_length"], found["output_length"], found["hash_ids"],
                   session=session)  # fmt: skip

    return _lines(file, row)


def _azure(file: Iterable[str]) -> Iterator[Any]:
    start: list[datetime] = []

    def row(found: dict[str, str]) -> Row:
        # Seven digits after the point, one more than Python reads.
        at = datetime.fromisoformat(found["TIMESTAMP"][:26])
        start[:] = start or [at]
        seconds = (at - start[0]).total_seconds()
        return Row(seconds, int(found["ContextTokens"]), int(found["GeneratedTokens"]))

    for number, line in enumerate(csv.DictReader(file), 2):
        yield number, lambda line=line: row(line)


def _burstgpt(file: Iterable[str]) -> Iterator[Any]:
    def row(found: dict[str, str]) -> Row:
        tokens = int(found["Request tokens"]), int(found["Response tokens"])
        session = found.get("Session ID") or ""
        return Row(float(found["Timestamp"]), *tokens, session=session)

    for number, line in enumerate(csv.DictReader(file), 2):
        yield number, lambda line=line: row(line)


def line(row: Row, block: int) -> bytes:
    """A row of Mooncake's form. Blocks that nobody shares are left out: whoever reads it makes
    them up."""
    found: dict[str, Any] = {
        "timestamp": round(row.at_s * 1e3),
        "input_length": row.input,
        "output_length": row.output,
    }
    if row.blocks is not None:
        found["hash_ids"] = row.blocks[: -(-row.input // block)]
    if row.session:
        found["session_id"] = row.session
    return orjson.dumps(found) + b"\n"
