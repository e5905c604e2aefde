"""Counters and histograms add up over workers, never go back, and are what was recorded."""

import math
import random
import struct

import pytest
from harness.mapped import Writer
from hypothesis import given, settings
from hypothesis import strategies as st

from native import reference
from native._core import Counters, Stats

TIMES = st.one_of(
    st.sampled_from(
        [-1.0, math.nan, math.inf, -math.inf, 0.0, 0.05, 0.0500001, 1.0, 3600.0, 9999.0]
    ),
    st.floats(0.0001, 700),
)
COUNTS = st.integers(-1, 100_000)
REQUESTS = st.tuples(
    st.sampled_from([0, 101, 200, 204, 404, 429, 500, 599, 999]),
    st.integers(0, Stats.OUTCOMES - 1),
    st.integers(0, Stats.LANES - 1),
    st.integers(0, Stats.ENDS - 1),
    st.integers(0, Stats.WORDS - 1),
    st.integers(0, 7),
    st.tuples(*(TIMES,) * len(Stats.TIMES)),
    st.tuples(*(COUNTS,) * len(Stats.SUMS)),
)
Request = tuple[int, int, int, int, int, int, tuple[float, ...], tuple[int, ...]]
PLAIN: Request = (
    200, 0, 0, 0, 1, 0, (0.1, 0.01, *(1.0,) * (len(Stats.TIMES) - 2)), (10,) * len(Stats.SUMS)
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), REQUESTS), max_size=20))
def test_a_snapshot_is_what_was_recorded(records: list[tuple[int, Request]]) -> None:
    first = Stats(3, 4)
    workers = [first, Stats(3, 4, first.fd), Stats(3, 4, first.fd)]
    for worker, stats in enumerate(workers):
        stats.bind(worker)
    first.add_series()
    series = first.add_series()
    for worker, request in records:
        assert workers[worker].record(series, *request)
    seen = [request for _, request in records]
    snapshot = workers[2].snapshot(series)
    by_class: dict[tuple[int, int], int] = {}
    for status, outcome, *_ in seen:
        key = (min(5, status // 100), outcome)
        by_class[key] = by_class.get(key, 0) + 1
    assert snapshot.requests == [(*key, count) for key, count in sorted(by_class.items())]
    assert snapshot.lanes == [sum(request[2] == lane for request in seen) for lane in range(2)]
    for kind, (counts, size) in enumerate(
        ((snapshot.ends, Stats.ENDS), (snapshot.words, Stats.WORDS)), 3
    ):
        assert counts == [sum(request[kind] == at for request in seen) for at in range(size)]
    assert snapshot.broken == [sum(r[5] >> bit & 1 for r in seen) for bit in range(3)]
    for at, name in enumerate(Stats.SUMS):
        assert getattr(snapshot, name) == sum(max(0, request[7][at]) for request in seen)
    assert snapshot.metered == sum(request[7][0] >= 0 or request[7][1] >= 0 for request in seen)
    for at, name in enumerate(Stats.TIMES):
        bounds = Stats.bounds(name)
        valid = [request[6][at] for request in seen if 0 <= request[6][at] < math.inf]
        counts, sum_s, within = snapshot.histograms[name]
        assert within == 0
        expected = [0] * (len(bounds) + 1)
        for value in valid:
            expected[reference.bucket(bounds, value)] += 1
        assert counts == expected
        assert math.isclose(sum_s, sum(valid), rel_tol=1e-9, abs_tol=1e-12)
    assert sum(snapshot.histograms["itl"][0]) == 0


def test_bounds_are_made_for_tokens() -> None:
    for name, low, high in (("ttft", 0.001, 600), ("itl", 0.0005, 60), ("tpot", 0.0005, 60)):
        bounds = Stats.bounds(name)
        assert (bounds[0], bounds[-1]) == (low, high)
        assert list(bounds) == sorted(set(bounds))
        assert len(bounds) <= 64
    for slo in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0):
        assert slo in Stats.bounds("ttft")
        assert slo in Stats.bounds("itl")
    with pytest.raises(ValueError, match="there is no histogram `jitter`"):
        Stats.bounds("jitter")


def test_gaps_are_written_in_place() -> None:
    stats = Stats(2, 2)
    other = Stats(2, 2, stats.fd)
    stats.bind(0)
    other.bind(1)
    series = stats.add_series()
    bounds = Stats.bounds("itl")
    views = [owner.itl_view(series) for owner in (stats, other)]
    for view in views:
        assert (len(view), view.readonly) == (8 * (len(bounds) + 5), False)
        counts = view[: 8 * (len(bounds) + 1)].cast("Q")
        counts[3] += 2
        counts[len(bounds)] += 1
        struct.pack_into("d", view, 8 * (len(bounds) + 1), 1.25)
    del stats
    counts_seen, sum_s, _ = other.snapshot(series).histograms["itl"]
    assert (counts_seen[3], counts_seen[-1], sum(counts_seen), sum_s) == (4, 2, 6, 2.5)
    # The mapping outlives the object it was lent by.
    views[0][:8].cast("Q")[0] = 5
    assert other.snapshot(series).histograms["itl"][0][0] == 5


def test_a_series_that_comes_back_starts_from_zero() -> None:
    stats = Stats(1, 1)
    stats.bind(0)
    old = stats.add_series()
    assert stats.record(old, *PLAIN)
    with pytest.raises(ValueError, match="room for 1 series"):
        stats.add_series()
    assert stats.remove_series(old)
    assert not stats.remove_series(old)
    new = stats.add_series()
    assert stats.snapshot(new).requests == []
    assert stats.record(new, *PLAIN)
    assert not stats.record(old, *PLAIN)
    assert stats.snapshot(new).requests == [(2, 0, 1)]
    with pytest.raises(ValueError, match="is gone"):
        stats.itl_view(old)


def test_a_late_stream_leaves_the_histogram_of_a_successor_alone() -> None:
    """Its row was freed and taken by another series while it ran."""
    stats = Stats(1, 1)
    stats.bind(0)
    bounds = Stats.bounds("itl")
    old = stats.add_series()
    view = stats.itl_view(old)
    seen = view[8 * (len(bounds) + 4) :].cast("Q")
    assert seen[0] == old >> 32
    stats.remove_series(old)
    new = stats.add_series()
    stats.itl_view(new)
    assert seen[0] == new >> 32 != old >> 32


BUSY = """
from native._core import Stats
stats = Stats(3, 4, fd)
stats.bind(worker)
series = 1 << 32
def step(i):
    stats.record(series, 200, worker, 0, 0, 1, 0, (0.5,) * 8, (3, 2, 1, 2, 10, 20, 0, 0))
"""


def test_sums_never_go_back_while_workers_are_killed_and_replaced() -> None:
    rnd = random.Random(11)
    stats = Stats(3, 4)
    assert stats.add_series() == 1 << 32
    series, reported, last = 1 << 32, 0, 0

    def requests() -> int:
        return sum(count for _, _, count in stats.snapshot(series).requests)

    for _ in range(6):
        with Writer(BUSY, stats.fd, 0) as one, Writer(BUSY, stats.fd, 1) as two:
            for _ in range(rnd.randint(1, 6)):
                reported_now = one.done(1)
                now = requests()
                assert now >= last
                last = now
            reported_now += two.done(rnd.randint(1, 6))
            one.kill()
            two.kill()
        reported += reported_now
        before = stats.snapshot(series)
        assert stats.retire(0)
        assert stats.retire(1)
        after = stats.snapshot(series)
        assert after.requests == before.requests
        assert after.histograms == before.histograms
        assert requests() >= max(reported, last)
        last = requests()
    total = stats.snapshot(series)
    # Each of the twelve kills may have cut one record in two, and nothing else.
    for count in (sum(total.histograms["e2el"][0]), total.lanes[0], total.input_tokens // 3):
        assert abs(count - last) <= 12


def test_counters_stay_and_gauges_go_with_their_worker() -> None:
    names = (["accepted", "refused"], ["open"])
    first = Counters(2, *names)
    second = Counters(2, *names, first.fd)
    first.bind(0)
    second.bind(1)
    assert first.names == ["accepted", "refused", "open"]
    first.add(0)
    second.add(0, 4)
    first.add(2, 3)
    second.set(2, 5)
    second.add(2, -1)
    assert second.values() == [5, 0, 7]
    assert first.retire(1)
    second.add(0, 100)
    second.set(2, 100)
    assert first.values() == [5, 0, 3]
    assert first.value(2) == 3
    with pytest.raises(ValueError, match="`refused` only goes up"):
        first.add(1, -1)
    with pytest.raises(ValueError, match="`accepted` is no gauge"):
        first.set(0, 1)
    with pytest.raises(ValueError, match=r"3 is outside 0\.\.3"):
        first.add(3)
    with pytest.raises(ValueError, match="declared twice"):
        Counters(1, ["a"], ["a"])
    with pytest.raises(ValueError, match="not shared memory of this counters"):
        Counters(2, ["accepted", "refused"], ["shut"], first.fd)


def test_misuse_is_refused() -> None:
    stats = Stats(1, 2)
    series = stats.add_series()
    for call in (
        lambda: stats.record(series, *PLAIN),
        lambda: stats.itl_view(series),
        lambda: stats.offer(series),
        lambda: stats.mark(series, [1.0]),
    ):
        with pytest.raises(RuntimeError, match="call `bind` first"):
            call()
    stats.bind(0)
    most = (999, Stats.OUTCOMES - 1, Stats.LANES - 1, Stats.ENDS - 1, Stats.WORDS - 1, 7)
    for at, value in enumerate(most):
        kinds = [*PLAIN[:at], value + 1, *PLAIN[at + 1 : 6]]
        with pytest.raises(ValueError, match=f"must be at most {value}, got {value + 1}"):
            stats.record(series, *kinds, *PLAIN[6:])
    with pytest.raises(ValueError, match="`times` must hold 8 numbers, got 1"):
        stats.record(series, *PLAIN[:6], (1.0,), PLAIN[7])
    with pytest.raises(ValueError, match="`sums` must hold 8 numbers, got 0"):
        stats.record(series, *PLAIN[:7], ())
    with pytest.raises(ValueError, match="not a handle"):
        stats.record(5, *PLAIN)
    with pytest.raises(ValueError, match="these sizes need"):
        Stats(1, 3, stats.fd)


def test_a_mark_is_one_more_bound_and_holds_for_what_came_since() -> None:
    first = Stats(2, 2)
    second = Stats(2, 2, first.fd)
    first.bind(0)
    second.bind(1)
    series = first.add_series()
    bounds = Stats.bounds("ttft")
    assert 1.6 not in bounds and 1.7 not in bounds
    marks = [1.7]

    def seen(ttft_s: float) -> tuple[int, int]:
        for stats in (first, second):
            stats.record(series, *PLAIN[:6], (ttft_s, *PLAIN[6][1:]), PLAIN[7])
        counts, _, within = first.snapshot(series, marks).histograms["ttft"]
        return counts[reference.bucket(bounds, 1.7)], within

    first.mark(series, marks)
    assert seen(1.6) == (2, 1)  # the other worker knows of no mark yet
    second.mark(series, marks)
    assert seen(1.7) == (4, 3)
    assert seen(1.8) == (6, 3)
    assert seen(1.0) == (6, 3)  # of a lower bucket
    assert first.snapshot(series).histograms["ttft"][2] == 0
    first.mark(series, [1.65])
    marks = [1.65]
    assert seen(1.6) == (8, 1)
    first.offer(series)
    second.offer(series)
    assert first.snapshot(series).offered == 2
