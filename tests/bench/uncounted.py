"""kvgate as it is, but that servers called `off` or `blind` count nothing of their requests: what
counting.py holds the others against. Takes the arguments of kvgate.

There is no such switch in kvgate: counts are what its own decisions and pages are made of. So the
methods that count are wrapped here, for every server alike, and let nothing through for these two.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path[0] = str(Path(__file__).resolve().parents[2])  # in place of this folder

from gateway.cli.program import main  # noqa: E402
from gateway.stats import Statistics  # noqa: E402

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.stats import Names

UNCOUNTED = ("off", "blind")


_init, _open, _gaps, _request = (
    Statistics.__init__, Statistics.open, Statistics.gaps, Statistics.request,
)  # fmt: skip
_rows: set[int] = set()


def init(self: Statistics, *args: int | None) -> None:
    _init(self, *args)  # type: ignore[arg-type]
    offer, plain = self.offer, self.plain
    self.offer = lambda series: series in _rows or offer(series)
    self.plain = lambda ctx: ctx.plan.series[""] in _rows or plain(ctx)


def open_(self: Statistics, names: Names) -> int:
    row = _open(self, names)
    if names[0] in UNCOUNTED:
        _rows.add(row)
    return row


def gaps(self: Statistics, series: int) -> memoryview | None:
    return None if series in _rows else _gaps(self, series)


def request(self: Statistics, ctx: Context) -> None:
    if ctx.plan.series[""] not in _rows:
        _request(self, ctx)


Statistics.__init__, Statistics.request = init, request  # type: ignore[method-assign]
Statistics.open, Statistics.gaps = open_, gaps  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
