"""Traffic made from a pool of ServeGen's clients: rates and lengths that were measured of each.

A folder holds, of each client, `chunk-N-trace.csv` (start of a window of ten minutes in seconds,
rate, CV, `Gamma` or `Weibull` and two numbers of that law for the time between arrivals) and
`chunk-N-dataset.json` (by the start of six hours: probabilities of prompt and answer lengths). A
client is a renewal process in each window; lengths are drawn independently. There are no prefixes.
The same folder gives the same rows.
"""

from __future__ import annotations

import csv
import json
import math
import random
from ast import literal_eval
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from gateway.planner.trace_formats import Row

WINDOW_S = 600.0
# Of a client's law, windows in which so little is expected are passed over.
LEAST = 1e-3


@dataclass(frozen=True, slots=True)
class _Lengths:
    values: list[int]
    sums: list[float]

    def draw(self, chance: random.Random) -> int:
        at = bisect_right(self.sums, chance.random() * self.sums[-1])
        return max(1, self.values[min(at, len(self.values) - 1)])


@dataclass(frozen=True, slots=True)
class _Window:
    start_s: float
    rate: float
    law: str
    first: float
    second: float

    def gap_s(self, chance: random.Random) -> float:
        """Gamma (shape, scale), Weibull (shape, scale), else exponential; of the window's rate."""
        if self.law == "Gamma" and self.first > 0:
            return chance.gammavariate(self.first, 1 / (self.first * self.rate))
        if self.law == "Weibull" and self.first > 0:
            scale = 1 / (self.rate * math.gamma(1 + 1 / self.first))
            return chance.weibullvariate(scale, self.first)
        return chance.expovariate(self.rate)


def is_pool(path: Path) -> bool:
    return path.is_dir() and any(path.glob("chunk-*-trace.csv"))


def generate(path: Path, limit: int, seed: int = 0) -> list[Row]:
    """The first `limit` requests of all clients together, window by window, from the first that
    any client has. Raises ValueError, KeyError, OSError."""
    clients = [_client(file) for file in sorted(path.glob("chunk-*-trace.csv"))]
    starts = sorted({window.start_s for windows, _ in clients for window in windows})
    chance = random.Random(seed)
    rows: list[Row] = []
    for start_s in starts:
        for number, (windows, lengths) in enumerate(clients):
            window = next((one for one in windows if one.start_s == start_s), None)
            if window is not None and window.rate * WINDOW_S > LEAST:
                rows.extend(_requests(window, lengths, f"client-{number}", chance))
        if len(rows) >= limit:
            break
    rows.sort(key=lambda row: row.at_s)
    first_s = rows[0].at_s if rows else 0.0
    return [
        Row(row.at_s - first_s, row.input, row.output, client=row.client) for row in rows[:limit]
    ]


_Spans = list[tuple[float, _Lengths, _Lengths]]


def _requests(
    window: _Window, lengths: _Spans, client: str, chance: random.Random
) -> Iterator[Row]:
    at = bisect_right([span[0] for span in lengths], window.start_s) - 1
    _, inputs, outputs = lengths[max(at, 0)]
    # The first gap began before the window.
    now_s = window.start_s + window.gap_s(chance) * chance.random()
    while now_s < window.start_s + WINDOW_S:
        yield Row(now_s, inputs.draw(chance), outputs.draw(chance), client=client)
        now_s += window.gap_s(chance)


def _client(file: Path) -> tuple[list[_Window], _Spans]:
    windows = []
    with file.open(newline="") as lines:
        for row in csv.reader(lines):
            if len(row) < 2 or not row[0].replace(".", "", 1).isdigit():
                continue
            numbers = [float(text) if text.strip() else 0.0 for text in row[4:6]]
            first, second = [*numbers, 0.0, 0.0][:2]
            law = row[3] if len(row) > 3 else ""
            windows.append(_Window(float(row[0]), float(row[1] or 0), law, first, second))
    spans = json.loads(file.with_name(file.name.replace("-trace.csv", "-dataset.json")).read_text())
    found: _Spans = [
        (float(start), _lengths(span["input_tokens"]), _lengths(span["output_tokens"]))
        for start, span in spans.items()
        if span and span.get("input_tokens") and span.get("output_tokens")
    ]
    if not found:
        raise ValueError(f"{file.name}: its dataset has no lengths")
    return windows, sorted(found, key=lambda span: span[0])


def _lengths(written: object) -> _Lengths:
    """Tokens -> probability; files hold it as text."""
    found = literal_eval(written) if isinstance(written, str) else written
    if not isinstance(found, dict) or not found:
        raise ValueError("lengths are not probabilities by number of tokens")
    values = sorted((int(float(tokens)), float(share)) for tokens, share in found.items())
    return _Lengths([value for value, _ in values], list(accumulate(s for _, s in values)))
