"""Counts of this gateway: a front of `native.Stats` and `native.Counters` in shared memory.

Invariants: what is counted is named by closed sets (configured servers, locations and upstreams;
error codes; termination codes; reasons of retries), so no request can make a new series; one
native call per request.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING

from gateway import errors
from gateway.context import CLIENT_LEFT
from gateway.slo import ENDS, GENERATES, LEVELS, WORDS, end_of, judge
from native import _core
from native.relay import Tally

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.load.goodput import Slo

SERIES_MAX = 1024  # (server, location, upstream)
OUTCOMES = ("--", *(who + phase for who in "CSG" for phase in "RQCHD-"))
LANES = ("express", "starlette")
RETRY_REASONS = (
    "connect", "connect_timeout", "reset", "eof", "send_timeout",
    "first_byte_timeout", "bad_reply", "status",
)  # fmt: skip
# What each worker says of itself, once a second.
SAID_COUNTS = ["log_dropped", "record_dropped"]
SAID_GAUGES = ("active", "responses", "connections", "dashboards")
NO_TOKENS = (-1, -1, -1, -1)
_OUTCOME = {code: at for at, code in enumerate(OUTCOMES)}
_LANE = {lane: at for at, lane in enumerate(LANES)}
_END = {end: at for at, end in enumerate(ENDS)}
_WORD = {word: at for at, word in enumerate(WORDS)}
_LEVEL = {name: 1 << at for at, name in enumerate(LEVELS)}

Names = tuple[str, str, str]


def tally(record: Callable[..., object]) -> Tally:
    """Counts plain requests with `record`, as `Statistics.any_request` would."""
    return Tally(
        record, paths=GENERATES, complete=("--", _OUTCOME["--"]),
        completed=("completed", _END["completed"]), good=("good", _WORD["good"]), lanes=_LANE,
    )  # fmt: skip


class Statistics:
    """`series` are (server, location, upstream); upstream "" = none was chosen."""

    def __init__(self, workers: int = 1, worker: int | None = 0) -> None:
        """`worker` None: bound later, by `bind`."""
        self._stats = _core.Stats(workers, SERIES_MAX)
        self.series: dict[Names, int] = {}  # told to workers by the master, as `Ledger.handles`
        codes = [cls.code for cls in errors.all_errors()]
        names = [f"refused/{code}" for code in codes]
        names += [f"retry/{reason}" for reason in RETRY_REASONS]
        names += ["stripped", "unsent_reuse"]
        names += SAID_COUNTS
        self._counters = _core.Counters(workers, names, list(SAID_GAUGES))
        self._at = {name: at for at, name in enumerate((*names, *SAID_GAUGES))}
        # Both run for every request, and are native calls themselves: `offer(series)` counts one
        # that has come; `plain(ctx)` one that ended as most do, else it says False.
        self.offer = self._stats.offer
        self.plain = tally(self._stats.record).plain
        self._bound = False
        self._marks: dict[int, list[float]] = {}  # by series: its SLOs as bounds
        self.gap_bounds = _core.Stats.bounds("itl")
        if worker is not None:
            self.bind(worker)

    def bind(self, worker: int) -> None:
        """Makes this process the writer of a slot. Raises ValueError where it is taken."""
        self._stats.bind(worker)
        self._counters.bind(worker)
        self._bound = True

    def retire(self, worker: int) -> None:
        """Takes back the gauges of a process that has ended."""
        self._stats.retire(worker)
        self._counters.retire(worker)

    def open(self, names: Names) -> int:
        """The handle of a series; the same names get the same one. Raises ValueError beyond
        SERIES_MAX.
        """
        if names not in self.series:
            self.series[names] = self._stats.add_series()
        return self.series[names]

    def sweep(self, present: Container[Names]) -> None:
        """Frees the rows of all others. What still runs there is no longer counted."""
        for names in [names for names in self.series if names not in present]:
            series = self.series.pop(names)
            self._marks.pop(series, None)
            self._stats.remove_series(series)

    def mark(self, series: int, slo: Slo) -> None:
        """Puts SLOs among the bounds of a series' histograms."""
        limits = {name: getattr(slo, f"{name}_s") for name in LEVELS}
        limits["itl"] = slo.tpot_s
        self._marks[series] = [limits.get(name, 0.0) for name in (*_core.Stats.TIMES, "itl")]
        if self._bound:
            self._stats.mark(series, self._marks[series])

    def slos(self, series: int) -> dict[str, float]:
        """The SLOs among a series' bounds, by one of LEVELS, seconds; 0 = none."""
        marks = self._marks.get(series, ())
        return dict(zip(LEVELS, marks, strict=False)) or dict.fromkeys(LEVELS, 0.0)

    def gaps(self, series: int) -> memoryview | None:
        """The histogram of gaps between chunks that the relay writes in place; None in a process
        that serves nothing.
        """
        return self._stats.itl_view(series) if self._bound else None

    # ---- counting ----

    def request(self, ctx: Context) -> None:
        """Counts a request that has ended in whatever way, and writes what it says of it."""
        self.any_request(ctx, self._stats.record)
        if ctx.error is not None:
            self._counters.add(self._at["refused/" + ctx.error.code])
        if ctx.stripped:
            self._counters.add(self._at["stripped"], ctx.stripped)

    @staticmethod
    def any_request(ctx: Context, record: Callable[..., object]) -> None:
        """What is counted of a request of any kind; `record`: as `native.Stats.record`."""
        request, leg = ctx.request, ctx.leg
        end = ctx.end = end_of(ctx.status, ctx.termination)
        duration_s = ctx.t_end - request.t_head
        # A stored response that is fetched again was counted when it was made.
        times: tuple[float, ...]
        if leg is None or not leg.relayed or request.method != b"POST":
            times, tokens = (-1.0, -1.0, -1.0, duration_s, -1.0, -1.0, -1.0, -1.0), NO_TOKENS
        else:
            times, tokens = leg.times(request.t0, duration_s, end == "completed"), leg.counts
        judge(ctx, times)
        made, chunks = tokens[1], tokens[3]
        body = request.body
        record(
            ctx.plan.series[ctx.group.name if ctx.group is not None else ""],
            0 if ctx.status == CLIENT_LEFT else ctx.status,
            _OUTCOME[ctx.termination],
            _LANE[ctx.lane],
            _END[end],
            _WORD[ctx.word],
            sum(_LEVEL[name] for name in ctx.broken) if ctx.broken else 0,
            times,
            (
                *tokens,
                request.head_bytes
                + (len(body) if body is not None else max(request.content_length, 0)),
                ctx.bytes_sent,
                -1 if ctx.word != "good" else chunks if made < 0 else made,
                1 if made < 0 < chunks else 0,
            ),
        )

    def retry(self, reason: str) -> None:
        """A leg is followed by another on a different engine. A status is counted as "status"."""
        self._counters.add(self._at["retry/" + (reason if reason in RETRY_REASONS else "status")])

    def replay(self) -> None:
        """An idle connection had been closed: the request goes out again on a fresh one."""
        self._counters.add(self._at["unsent_reuse"])

    def say(self, name: str, value: int) -> None:
        """This process's part of one of SAID_GAUGES."""
        self._counters.set(self._at[name], value)

    def add(self, name: str, count: int) -> None:
        """Adds to one of SAID_COUNTS."""
        self._counters.add(self._at[name], count)

    # ---- reading ----

    def count(self, name: str) -> int:
        return self._counters.value(self._at[name])

    def counts(self, kind: str) -> dict[str, int]:
        """`refused` by code, `retry` by reason."""
        prefix = kind + "/"
        return {
            name[len(prefix) :]: self._counters.value(at)
            for name, at in self._at.items()
            if name.startswith(prefix)
        }

    @staticmethod
    def bounds(name: str) -> tuple[float, ...]:
        """Upper bounds in seconds of a histogram of a snapshot."""
        return _core.Stats.bounds(name)

    def snapshot(self, series: int) -> _core.SeriesSnapshot:
        return self._stats.snapshot(series, self._marks.get(series, []))

    def split(self, series: int, name: str) -> float:
        """The SLO among the bounds of a histogram, seconds; 0 = none that is not there anyhow."""
        marks = self._marks.get(series)
        limit_s = 0.0 if marks is None else marks[(*_core.Stats.TIMES, "itl").index(name)]
        return 0.0 if limit_s in self.bounds(name) else limit_s
