"""Counts of this gateway: a front of `native.Stats` and `native.Counters` in shared memory.

Invariants: what is counted is named by closed sets (configured servers, locations and upstreams;
error codes; termination codes; reasons of retries), so no request can make a new series; one
native call per request.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from gateway import errors
from gateway.context import CLIENT_LEFT
from native import _core

if TYPE_CHECKING:
    from gateway.context import Context

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
_OUTCOME = {code: at for at, code in enumerate(OUTCOMES)}
_LANE = {lane: at for at, lane in enumerate(LANES)}

Names = tuple[str, str, str]


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
        self._bound = False
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
            self._stats.remove_series(self.series.pop(names))

    def gaps(self, series: int) -> memoryview | None:
        """The histogram of gaps between chunks that the relay writes in place; None in a process
        that serves nothing.
        """
        return self._stats.itl_view(series) if self._bound else None

    # ---- counting ----

    def request(self, ctx: Context) -> None:
        """Counts a request that has ended."""
        request = ctx.request
        leg = ctx.leg
        start = request.t_head
        first = per_token = -1.0
        prompt = completion = cached = chunks = -1
        # A stored response that is fetched again was counted when it was made.
        if leg is not None and leg.relayed and request.method == b"POST":
            prompt, completion, cached = leg.prompt_tokens, leg.completion_tokens, leg.cached_tokens
            if leg.sse:
                chunks = leg.chunks
                if leg.t_first:
                    first = leg.t_first - start
                tokens = completion if completion > 0 else chunks
                if tokens > 1:
                    per_token = (leg.t_last - leg.t_first) / (tokens - 1)
        body = request.body
        self._stats.record(
            ctx.plan.series[ctx.group.name if ctx.group is not None else ""],
            0 if ctx.status == CLIENT_LEFT else ctx.status,
            _OUTCOME[ctx.termination],
            _LANE[ctx.lane],
            ctx.t_end - start,
            first,
            per_token,
            prompt,
            completion,
            cached,
            chunks,
            request.head_bytes
            + (len(body) if body is not None else max(request.content_length, 0)),
            ctx.bytes_sent,
        )
        if ctx.error is not None:
            self._counters.add(self._at["refused/" + ctx.error.code])
        if ctx.stripped:
            self._counters.add(self._at["stripped"], ctx.stripped)

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
        return self._stats.snapshot(series)
