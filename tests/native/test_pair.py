"""Prefill and answer chosen together, through the face that the gateway uses."""

from __future__ import annotations

from math import inf

import pytest

from native._core import Ask, Fit, Index, Ledger, Prompt, Scorer, Ticket

NOW = 1000.0
P, D = b"\1\0", b"\0\1"
BOTH = b"\1\1"


def scorer(links: list[tuple[float, float]] | None = None) -> Scorer:
    ledger = Ledger(1, 8)
    ledger.bind(0)
    index = Index(1 << 24)
    engines = [ledger.add_engine() for _ in range(2)]
    slots = [index.add_engine() for _ in range(2)]
    fits = [Fit("h100-70b-tp4")] * 2
    return Scorer(ledger, index, engines, slots, [1, 1], [0, 0], fits, [0, 0], None, None, links)


def prompt(tokens: int, first: int = 1) -> Prompt:
    return Prompt.of_list([first] + [7] * (tokens - 1))


def loads(scorer: Scorer) -> list[tuple[int, int, int, float]]:
    rows = scorer.explain(prompt(16, 9), BOTH, NOW + 1e6)
    return [(row.waiting, row.running, row.kv_tokens, row.queue_ms) for row in rows]


def busy(scorer: Scorer, place: int, requests: int) -> list[Ticket]:
    """Answers under way at an engine, each begun as soon as modelled."""
    tickets = []
    for n in range(requests):
        choice = scorer.at(place, prompt(2000, 100 + n), NOW - 100.0 + n)
        tickets.append(choice.start(NOW - 100.0 + n))
        tickets[-1].first(NOW - 100.0 + n + choice.ttft_ms / 1e3)
    return tickets


def test_a_long_prompt_goes_elsewhere_where_answers_run() -> None:
    fleet = scorer()
    held = busy(fleet, 1, 12)
    ask = Ask(ttft_slo_ms=2000.0, tpot_slo_ms=25.0)
    pair = fleet.pair(prompt(8000), P, D, NOW, 1, ask)
    assert pair is not None and pair.prefill is not None
    assert (pair.prefill.place, pair.decode.place, pair.transfer_tokens) == (0, 1, 8000)
    assert pair.remote_ms < pair.local_ms < inf
    assert pair.transfer_ms == pytest.approx(2 + 8000 * 327_680 / 12.5e6, rel=0.01)
    # What is slow to move stays; so does what nobody is disturbed by.
    slow = scorer([(0.1, 2.0)] * 2)
    also_held = busy(slow, 1, 12)
    stays = slow.pair(prompt(8000), P, D, NOW, 1, ask)
    assert stays is not None and stays.prefill is None and stays.transfer_tokens == 0
    idle = scorer().pair(prompt(8000), P, D, NOW, 1, ask)
    assert idle is not None and idle.prefill is None
    del held, also_held


def test_force_and_masks() -> None:
    fleet = scorer()
    forced = fleet.pair(prompt(100), P, D, NOW, 1, None, 1)
    assert forced is not None and forced.prefill is not None and forced.reason == "forced"
    never = fleet.pair(prompt(100), P, D, NOW, 1, None, -1)
    assert never is not None and never.prefill is None and never.reason == "forced"
    assert never.remote_ms == inf
    alone = fleet.pair(prompt(9000), b"\0\0", D, NOW, 1, None, 1)
    assert alone is not None and alone.prefill is None and alone.reason == "no_prefill"
    # An engine does not send KV to itself.
    same = fleet.pair(prompt(9000), D, D, NOW, 1, None, 1)
    assert same is not None and same.prefill is None and same.reason == "no_prefill"
    assert fleet.pair(prompt(100), BOTH, b"\0\0", NOW, 1) is None
    short = fleet.pair(prompt(100), P, D, NOW, 1)
    assert short is not None and short.prefill is None and short.reason == "short"
    with pytest.raises(ValueError, match="force"):
        fleet.pair(prompt(100), P, D, NOW, 1, None, 2)


def test_each_leg_is_charged_with_its_part() -> None:
    fleet = scorer()
    pair = fleet.pair(prompt(8000), P, D, NOW, 1, None, 1)
    assert pair is not None and pair.prefill is not None
    prefill, decode = pair.prefill.start(NOW), pair.decode.start(NOW)
    there, here = fleet.explain(prompt(16, 9), BOTH, NOW)
    assert (there.waiting, there.kv_tokens) == (1, 8000) and there.queue_ms > 400.0
    assert (here.waiting, here.kv_tokens, here.queue_ms) == (1, 8100, 0.0)
    # The next one waits for the link, unless its own prefill ends later.
    after = fleet.pair(prompt(80, 2), P, D, NOW, 1, None, 1)
    assert after is not None
    terms = dict(after.decode.row.terms)
    assert terms["fetch"] <= after.transfer_ms + pair.transfer_ms
    prefill.first(NOW + 0.6)
    prefill.end(NOW + 0.6, 1)
    decode.sent(NOW + 0.6)
    assert loads(fleet)[0] == (0, 0, 0, 0.0)
    decode.first(NOW + 0.9)
    assert loads(fleet)[1] == (0, 1, 8100, 0.0)
    decode.end(NOW + 9.0, 300)
    assert loads(fleet) == [(0, 0, 0, 0.0)] * 2
    # One token of a prefill leg is no answer to learn a length from.
    assert fleet.output_tokens() > 200.0


def test_the_link_is_learnt_from_transfers_that_had_it_alone() -> None:
    fleet = scorer()
    now = NOW
    for n in range(200):
        pair = fleet.pair(prompt(20_000, 1000 + n), P, D, now, n, None, 1)
        assert pair is not None and pair.prefill is not None
        prefill, decode = pair.prefill.start(now), pair.decode.start(now)
        now += 1.5
        prefill.first(now)
        prefill.end(now, 1)
        decode.sent(now)
        # Half as fast as configured: 2 ms and 20 000 tokens at 6.25 GB/s, and a step.
        now += 0.002 + 20_000 * 327_680 / 6.25e9 + 0.02
        decode.first(now)
        decode.end(now + 1.0, 50)
        now += 5.0
    assert fleet.link_factors()[1] == pytest.approx(2.0, rel=0.1)
    assert fleet.link_factors()[0] == 1.0
