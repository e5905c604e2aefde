"""Files of recorded traffic -> rows, and the simulator's trace: arrivals, lengths, shared blocks.

`trace_formats` knows how they are written. Every row is checked; a bad one is named by file and
line. Lengths and hashes only, never text.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from gateway.planner.servegen import generate, is_pool
from gateway.planner.trace_formats import (
    BLOCK_MOONCAKE,
    BLOCK_PLAIN,
    FORMATS,
    Format,
    Row,
    Told,
    line,
    of,
)
from native._core import Trace

ROWS_MAX = 10_000_000
# Time stamps that move in steps of at least so much, nearly always, are a clock's ticks.
TICK_LEAST_S = 1.0
TICK_SHARE = 0.8
TICK_NEAR_S = 0.005


# Of requests and of prompt tokens; where blocks of fewer are known, they stand for no others.
HASHED_ENOUGH = 0.9


class BadTrace(ValueError):
    """The file, the line and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Hashed:
    """Of how many requests the blocks are known, and which share of the prompt tokens is theirs."""

    requests: int
    of: int
    tokens: float

    @property
    def is_whole(self) -> bool:
        return self.requests == self.of

    @property
    def is_enough(self) -> bool:
        """To say what caches are worth."""
        return min(self.requests / self.of, self.tokens) >= HASHED_ENOUGH

    def __str__(self) -> str:
        if self.is_whole:
            return f"all {self.of} requests" if self.of > 1 else "the one request"
        return f"{self.requests} of {self.of} requests ({self.tokens:.1%} of prompt tokens)"

    @property
    def measured(self) -> list[str]:
        """A sentence of what is known, if anything is."""
        return [f"prefixes: the blocks of {self}"] if self.requests else []

    @property
    def assumed(self) -> list[str]:
        """What a replay makes of the rest."""
        if self.is_whole:
            return []
        unknown = self.of - self.requests
        return [f"prefixes: requests without block hashes ({unknown} of {self.of}) share nothing"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """`tick_s`: arrivals were rounded down to so many seconds, and are to be spread over them; 0 =
    they were not. `skipped`: rows without an answer, which no engine would have had to work for.
    Requests that are not `hashed` share nothing in `trace`.
    """

    trace: Trace
    name: str
    format: str
    tick_s: float
    skipped: int
    hashed: Hashed


@dataclass(frozen=True, slots=True)
class Rows:
    """What a file holds, in the order of arrival; as `Recorded`, before it is packed. Times count
    from the first arrival, whatever moment the file counts from."""

    rows: Sequence[Row]
    block: int
    name: str
    format: str
    tick_s: float
    skipped: int

    def packed(self) -> Recorded:
        trace = _pack(self.rows, self.block)
        return Recorded(trace, self.name, self.format, self.tick_s, self.skipped, self.hashed)

    @property
    def hashed(self) -> Hashed:
        known = [row.input for row in self.rows if row.blocks is not None]
        return Hashed(len(known), len(self.rows), sum(known) / sum(row.input for row in self.rows))

    def only_hashed(self) -> Rows:
        """Those whose blocks are known."""
        return replace(self, rows=[row for row in self.rows if row.blocks is not None])


def load(path: Path, limit: int = ROWS_MAX, told: Told | None = None) -> Recorded:
    """The first `limit` requests of a file. Raises BadTrace, OSError."""
    return rows(path, limit, told).packed()


def rows(path: Path, limit: int = ROWS_MAX, told: Told | None = None) -> Rows:
    """As `load`, with all that the file says of each request. A folder is a pool of ServeGen's
    clients. Raises BadTrace, OSError."""
    if is_pool(path):
        try:
            made = generate(path, limit)
        except (ValueError, KeyError, TypeError) as error:
            raise BadTrace(f"{path}: {error}") from error
        return _ordered(path, ("servegen", BLOCK_PLAIN), made, 0)
    with path.open("r", encoding="utf-8", newline="") as file:
        first = file.readline()
        file.seek(0)
        form = _format(path, first, told or Told())
        found: list[Row] = []
        skipped = 0
        for number, row in form.read(file):
            try:
                made_row = _checked(row(), form)
            except (ValueError, KeyError, TypeError) as error:
                raise BadTrace(f"{path}:{number}: {error}") from error
            if made_row.output == 0:
                skipped += 1
            else:
                found.append(made_row)
            if len(found) == limit:
                break
    return _ordered(path, (form.name, form.block), found, skipped)


def _ordered(path: Path, form: tuple[str, int], found: list[Row], skipped: int) -> Rows:
    if not found:
        raise BadTrace(f"{path}: no request with an answer")
    found.sort(key=lambda row: row.at_s)
    first_s = found[0].at_s  # of ours, seconds of the epoch
    made = [replace(row, at_s=row.at_s - first_s) for row in found] if first_s else found
    tick_s = _tick([row.at_s for row in made])
    name, block = form
    return Rows(made, block, path.stem, name, tick_s, skipped)


def _format(path: Path, first: str, told: Told) -> Format:
    try:
        form = of(first, told)
    except ValueError as error:
        raise BadTrace(f"{path}:1: {error}") from error
    if form is None:
        raise BadTrace(f"{path}:1: not a trace this knows\n    hint: what is read: {FORMATS}")
    return form


def _checked(row: Row, form: Format) -> Row:
    if not row.at_s >= 0:
        raise ValueError(f"it arrives at {row.at_s} s")
    if not (0 < row.input < 1 << 31 and 0 <= row.output < 1 << 31):
        raise ValueError(f"{row.input} tokens in and {row.output} out")
    if row.blocks is None:
        return row
    wanted, found = -(-row.input // form.block), len(row.blocks)
    if form.is_open and found == row.input // form.block < wanted:
        # Nobody can share what is in it: any number that is not taken will do.
        return replace(row, blocks=[*row.blocks, hash((row.at_s, *row.blocks[-1:], row.input))])
    if found != wanted:
        block = form.block
        raise ValueError(f"{row.input} tokens are {wanted} blocks of {block}, not {found}")
    return row


def _tick(times: list[float]) -> float:
    gaps = [b - a for a, b in pairwise(times) if b > a]
    if not gaps:
        return 0.0
    tick = float(Counter(round(gap, 1) for gap in gaps).most_common(1)[0][0])
    near = sum(abs(gap - tick) <= TICK_NEAR_S for gap in gaps)
    return tick if tick >= TICK_LEAST_S and near >= TICK_SHARE * len(gaps) else 0.0


def _pack(found: Sequence[Row], block: int) -> Trace:
    blocks = array("Q")
    fresh = 1 << 63  # numbers for blocks that nobody shares
    counts = array("I")
    for row in found:
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
        array("d", (row.at_s for row in found)).tobytes(),
        array("I", (row.input for row in found)).tobytes(),
        array("I", (row.output for row in found)).tobytes(),
        counts.tobytes(),
        blocks.tobytes(),
    )


def mooncake(found: Rows) -> Iterator[bytes]:
    """The lines of a Mooncake file. Blocks of another size become Mooncake's where theirs divide
    it: the hash of a longer block is that of its last part, as hashes are of the whole prefix."""
    parts, rest = divmod(BLOCK_MOONCAKE, found.block)
    for row in found.rows:
        blocks = row.blocks
        if blocks is not None:
            if rest:
                raise ValueError(f"blocks of {found.block} tokens do not make blocks of 512")
            blocks = [*blocks[parts - 1 :: parts], *(blocks[-1:] if len(blocks) % parts else ())]
        yield line(replace(row, blocks=blocks), BLOCK_MOONCAKE)


def write_mooncake(found: Rows, path: Path) -> None:
    """Raises OSError, ValueError."""
    with path.open("wb") as file:
        file.writelines(mooncake(found))
