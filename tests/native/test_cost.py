"""Who is picked, and that what is charged is taken back, through the face that the gateway uses."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from native._core import Ask, Fit, Index, Ledger, Prompt, Scorer, Ticket

NOW = 1000.0
ALL = b"\1" * 64


@dataclass
class Fleet:
    ledger: Ledger
    index: Index
    engines: list[int]
    slots: list[int]
    scorer: Scorer

    def load(self) -> list[tuple[int, int, int, float]]:
        """(waiting, running, KV tokens, queue in ms) of every engine."""
        rows = self.scorer.explain(distinct(16), ALL[: len(self.engines)], NOW + 1e6)
        return [(row.waiting, row.running, row.kv_tokens, row.queue_ms) for row in rows]


def fleet(count: int, **columns: list[int]) -> Fleet:
    ledger = Ledger(1, 64)
    ledger.bind(0)
    index = Index(1 << 24)
    engines = [ledger.add_engine() for _ in range(count)]
    slots = [index.add_engine() for _ in range(count)]
    scorer = Scorer(
        ledger,
        index,
        engines,
        slots,
        columns.get("weights", [1] * count),
        columns.get("max_conns", [0] * count),
        [Fit("h100-8b-tp1")] * count,
        [0] * count,
        columns.get("context"),
    )
    return Fleet(ledger, index, engines, slots, scorer)


_fresh = iter(range(1, 1 << 30))


def distinct(tokens: int) -> Prompt:
    """A prompt that shares nothing with any other."""
    return Prompt.of_list([next(_fresh)] + [7] * (tokens - 1))


def send(fleet: Fleet, prompt: Prompt, now: float, seed: int, **asks: float) -> Ticket:
    ask = Ask(**asks) if asks else None
    choice = fleet.scorer.select(prompt, ALL[: len(fleet.engines)], now, seed, ask)
    assert choice is not None
    fleet.index.predict(fleet.slots[choice.place], prompt, now, 5.0)
    return choice.start(now)


def test_a_herd_with_slow_first_bytes_is_spread() -> None:
    """Load counts when a request is sent, not when its stream begins."""
    four = fleet(4)
    tickets = [send(four, distinct(1000), NOW + i * 1e-4, i) for i in range(100)]
    counts = Counter(ticket.place for ticket in tickets)
    assert all(20 <= counts[place] <= 30 for place in range(4)), counts


def test_requests_one_after_another_without_overlap_use_every_engine() -> None:
    """At a concurrency of one the load says nothing: equals are drawn at random."""
    for engines in (2, 4):
        some = fleet(engines)
        counts: Counter[int] = Counter()
        for i in range(25 * engines):
            now = NOW + 20.0 * i
            ticket = send(some, distinct(2000), now, i)
            counts[ticket.place] += 1
            assert ticket.first(now + 0.1)
            assert ticket.end(now + 2.0, 100)
        assert all(15 <= counts[place] <= 35 for place in range(engines)), counts


def test_siblings_of_a_burst_follow_each_other() -> None:
    """Four prompts of one long prefix at once: none has announced it yet."""
    four = fleet(4)
    prefix = list(range(10_000_000, 10_004_096))
    tickets = [
        send(four, Prompt.of_list([*prefix, i, *range(50)]), NOW + i * 1e-3, i) for i in range(4)
    ]
    assert len({ticket.place for ticket in tickets}) == 1


def test_a_prefix_that_lies_somewhere_draws_its_requests_until_the_queue_costs_more() -> None:
    four = fleet(4)
    prompt = Prompt.of_list(list(range(20_000_000, 20_008_192)))
    four.index.assume(four.slots[2], prompt, 100_000)
    assert send(four, prompt, NOW, 1).place == 2
    tickets = [send(four, distinct(30_000), NOW, i) for i in range(30)]
    busy = four.scorer.explain(prompt, ALL[:4], NOW)
    assert busy[2].device == 8176
    while busy[2].queue_ms < busy[0].queue_ms + 20_000:
        choice = four.scorer.at(2, distinct(30_000), NOW)
        tickets.append(choice.start(NOW))
        busy = four.scorer.explain(prompt, ALL[:4], NOW)
    assert send(four, prompt, NOW, 1).place != 2


def test_an_engine_whose_streams_never_end_gets_no_new_sessions() -> None:
    """Completed requests per second say nothing: long ones complete seldom."""
    three = fleet(3)
    streams = []
    for _ in range(6):
        choice = three.scorer.at(0, distinct(60_000), NOW)
        streams.append(choice.start(NOW))
        streams[-1].first(NOW + choice.ttft_ms / 1e3)
    counts: Counter[int] = Counter()
    for i in range(40):
        now = NOW + 600 + i
        ticket = send(three, distinct(4000), now, i)
        counts[ticket.place] += 1
        ticket.first(now + 0.1)
        ticket.end(now + 0.4, 40)
    assert counts[0] == 0 and min(counts[1], counts[2]) >= 10, counts


def test_cancels_at_any_moment_leave_nothing_behind() -> None:
    draw = random.Random(4)
    three = fleet(3)
    open_: list[Ticket] = []
    for i in range(10_000):
        now = NOW + i * 0.01
        open_.append(send(three, distinct(draw.randrange(16, 4000)), now, i))
        if len(open_) > 20:
            ticket = open_.pop(draw.randrange(len(open_)))
            fate = draw.randrange(4)
            if fate in (1, 2):
                assert ticket.first(now)
                assert not ticket.first(now)
            if fate in (0, 2):
                assert ticket.end(now, draw.choice([None, 0, 50]))
                assert not ticket.end(now) and not ticket.first(now)
            # Otherwise nobody holds it any more, as when a task dies.
            del ticket
    assert sum(three.ledger.inflight(engine) for engine in three.engines) == len(open_) == 20
    open_.clear()
    assert three.load() == [(0, 0, 0, 0.0)] * 3
    assert [three.ledger.inflight(engine) for engine in three.engines] == [0, 0, 0]
    assert three.ledger.ignored() == (0, 0)


def test_an_engine_that_leaves_and_returns_under_load_is_never_below_zero() -> None:
    ledger = Ledger(1, 1)
    ledger.bind(0)

    def scorer(engine: int, former: Scorer | None = None) -> Scorer:
        fits = [Fit()]
        return Scorer(ledger, None, [engine], [-1], [1], [0], fits, [0], None, former)

    old = ledger.add_engine()
    first = scorer(old)
    tickets = [first.at(0, distinct(500), NOW).start(NOW) for _ in range(10)]
    assert ledger.remove_engine(old)
    new = ledger.add_engine()
    second = scorer(new, first)
    now = second.at(0, distinct(500), NOW).start(NOW)
    for ticket in tickets:
        ticket.first(NOW + 1)
        ticket.end(NOW + 2, 10)
    row = second.explain(distinct(500), b"\1", NOW)[0]
    assert (row.waiting, row.running, ledger.inflight(new)) == (1, 0, 1)
    assert now.end(NOW + 3)
    assert ledger.inflight(new) == 0


def test_filters_say_why_and_nobody_left_is_none() -> None:
    five = fleet(5, max_conns=[0, 0, 0, 1, 0], context=[0, 0, 4096, 0, 0])
    ask = Ask(available=b"\1\0\1\1\1")
    ticket = five.scorer.at(3, distinct(100), NOW).start(NOW)
    rows = five.scorer.explain(distinct(5000), b"\0\1\1\1\1", NOW, ask)
    assert [row.filtered for row in rows] == ["masked", "lora", "context", "full", ""]
    choice = five.scorer.select(distinct(5000), b"\0\1\1\1\1", NOW, 1, ask)
    assert choice is not None and choice.place == 4 and choice.runner_up is None
    assert five.scorer.select(distinct(5000), b"\0\1\1\1\0", NOW, 1, ask) is None
    ticket.end(NOW)


def test_the_terms_of_a_row_add_up() -> None:
    two = fleet(2)
    prompt = Prompt.of_list(list(range(30_000_000, 30_004_096)))
    two.index.assume(two.slots[0], prompt, 100_000)
    tickets = [send(two, distinct(3000), NOW, i) for i in range(6)]
    rows = two.scorer.explain(prompt, b"\1\1", NOW, Ask(ttft_slo_ms=100.0, session_place=1))
    for row in rows:
        assert sum(ms for _, ms in row.terms) == pytest.approx(row.cost_ms)
        assert row.uncached == 4096 - row.device - row.predicted
    choice = two.scorer.select(prompt, b"\1\1", NOW, 3)
    assert choice is not None and choice.runner_up is not None
    assert choice.cost_ms <= choice.runner_up[1]
    assert choice.matched == choice.overlap.total == 4096 - choice.uncached
    del tickets


def test_twice_the_weight_takes_about_twice_the_requests() -> None:
    two = fleet(2, weights=[1, 2])
    tickets = [send(two, distinct(2000), NOW, i) for i in range(120)]
    counts = Counter(ticket.place for ticket in tickets)
    assert 1.6 < counts[1] / counts[0] < 2.4, counts


def test_a_slow_engine_is_found_out_and_gets_less() -> None:
    """Both have the same fit; one takes three times as long. A rebuilt scorer still knows."""
    two = fleet(2)
    for i in range(400):
        now = NOW + 30.0 * i
        choice = two.scorer.at(i % 2, distinct(8000), now)
        ticket = choice.start(now)
        modelled = choice.ttft_ms / 1e3 / two.scorer.factors()[i % 2][0]
        seen = modelled * (3.0 if i % 2 else 1.0)
        ticket.first(now + seen)
        ticket.end(now + seen + 2.0, 50)
    fast, slow = (prompts for prompts, _ in two.scorer.factors())
    assert fast == pytest.approx(1.0, rel=0.1) and slow == pytest.approx(3.0, rel=0.1)
    fits = [Fit("h100-8b-tp1")] * 2
    columns = two.engines, two.slots, [1, 1], [0, 0], fits, [0, 0], None
    again = Scorer(two.ledger, two.index, *columns, two.scorer)
    assert again.factors() == two.scorer.factors()
    assert again.output_tokens() == two.scorer.output_tokens() < 200
    end = NOW + 1e5
    rows = again.explain(distinct(8000), b"\1\1", end)
    assert rows[1].ttft_ms == pytest.approx(3.0 * rows[0].ttft_ms, rel=0.2)


def test_what_cannot_be_is_refused_by_name() -> None:
    two = fleet(2)
    prompt = distinct(100)
    with pytest.raises(ValueError, match="mask has 3 bytes for 2 engines"):
        two.scorer.select(prompt, b"\1\1\1", NOW, 1)
    with pytest.raises(ValueError, match="mask has 1 bytes"):
        two.scorer.select(prompt, b"\1\1", NOW, 1, Ask(available=b"\1"))
    with pytest.raises(ValueError, match="no engine 2 of 2"):
        two.scorer.at(2, prompt, NOW)
    with pytest.raises(ValueError, match="ttft_slo_ms"):
        Ask(ttft_slo_ms=-1.0)
    with pytest.raises(ValueError, match="overlap_weight"):
        Ask(overlap_weight=float("nan"))
    with pytest.raises(ValueError, match="no profile is called `b300`; there are neutral"):
        Fit("b300")
    with pytest.raises(ValueError, match="no constant `d`"):
        Fit(None, [("d", 1.0)])
    with pytest.raises(ValueError, match="`hk` of a fit must be"):
        Fit(None, [("hk", -1.0)])
    with pytest.raises(ValueError, match="columns of 2 engines"):
        fits = [Fit()]
        Scorer(two.ledger, None, two.engines, [-1, -1], [1, 1], [0, 0], fits, [0, 0])


def test_a_fit_is_its_profile_with_changes() -> None:
    fit = Fit("h100-8b-tp1", [("b", 0.04)], 2048)
    assert dict(fit.values())["b"] == 0.04 and fit.chunk_tokens == 2048
    assert fit.kv_tokens == 430_000 and fit.kv_bytes_per_token == 131_072
    assert fit.prefill_ms(4096) > Fit("h100-8b-tp1").prefill_ms(4096)
    assert fit.prefill_ms(4096, 4096) > fit.prefill_ms(4096)
    assert fit.decode_ms(64, 131_072) > fit.decode_ms(1, 2048)
    assert "neutral" in Fit.profiles()
