"""Picks are those of the reference, keep to the mask and to limits, and spread as they should."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native import reference
from native._core import EngineSet, HashRing, Ledger, RoundRobin

WEIGHTS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def mask(data: st.DataObject, size: int) -> bytes:
    return bytes(data.draw(st.lists(st.sampled_from([0, 1, 1, 255]), min_size=size, max_size=size)))


@settings(max_examples=60, deadline=None)
@given(st.data(), WEIGHTS)
def test_round_robin_takes_turns_as_the_reference_does(
    data: st.DataObject, weights: list[int]
) -> None:
    turns, expected = RoundRobin(weights), reference.SmoothTurns(weights)
    for _ in range(20):
        eligible = mask(data, len(weights)) if data.draw(st.booleans()) else b"\1" * len(weights)
        assert turns.next(eligible) == expected.next(eligible)


@settings(max_examples=100, deadline=None)
@given(WEIGHTS)
def test_a_full_round_gives_everyone_exactly_its_weight(weights: list[int]) -> None:
    turns = RoundRobin(weights)
    picks = Counter(turns.next(b"\1" * len(weights)) for _ in range(3 * sum(weights)))
    assert [picks[i] for i in range(len(weights))] == [3 * weight for weight in weights]


@settings(max_examples=100, deadline=None)
@given(st.data(), WEIGHTS, WEIGHTS)
def test_turns_carried_over_to_other_engines_stay_fair(
    data: st.DataObject, before: list[int], after: list[int]
) -> None:
    turns = RoundRobin(before)
    for _ in range(data.draw(st.integers(0, 30))):
        turns.next(b"\1" * len(before))
    origins = data.draw(st.permutations(range(-len(after), len(before))))[: len(after)]
    turns = turns.rebuilt(after, [max(-1, origin) for origin in origins])
    rounds = 40
    picks = Counter(turns.next(b"\1" * len(after)) for _ in range(rounds * sum(after)))
    # What was owed before is paid within the first rounds: at most a few turns of the heaviest.
    slack = 2 * max(sum(before), sum(after))
    for i, weight in enumerate(after):
        assert abs(picks[i] - rounds * weight) <= slack


@settings(max_examples=200, deadline=None)
@given(st.data(), WEIGHTS, st.integers(0, 2**64 - 1))
def test_least_is_one_of_the_least_loaded_with_room(
    data: st.DataObject, weights: list[int], seed: int
) -> None:
    size = len(weights)
    ledger = Ledger(2, 16)
    other = Ledger(2, 16, ledger.fd)
    ledger.bind(0)
    other.bind(1)
    engines = [ledger.add_engine() for _ in range(size)]
    inflight = data.draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
    limits = data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    for engine, count in zip(engines, inflight, strict=True):
        for i in range(count):
            (ledger, other)[i % 2].acquire(engine)
    eligible = mask(data, size)
    room = [bool(eligible[i]) and (not limits[i] or inflight[i] < limits[i]) for i in range(size)]
    engine_set = EngineSet(ledger, engines, weights, limits)
    allowed = reference.least(inflight, weights, lambda i: room[i])
    assert engine_set.least(eligible, seed) in (allowed or {-1})
    assert [may != 0 for may in engine_set.room(eligible)] == room


def test_ties_are_broken_at_random_by_weight_and_reproducibly() -> None:
    ledger = Ledger(1, 8)
    engines = [ledger.add_engine() for _ in range(4)]
    engine_set = EngineSet(ledger, engines, [1, 1, 2, 4])
    picks = Counter(engine_set.least(b"\1\1\1\1", seed) for seed in range(8000))
    for i, share in enumerate((1000, 1000, 2000, 4000)):
        assert abs(picks[i] - share) < 200
    assert len({engine_set.least(b"\1\1\1\1", 77) for _ in range(20)}) == 1
    unlimited = b"\1\1\1\0"
    assert engine_set.room(unlimited) is unlimited


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(2, 12), st.binary(max_size=20))
def test_a_key_goes_to_its_next_choice_only_when_it_must(
    data: st.DataObject, size: int, key: bytes
) -> None:
    weights = data.draw(st.lists(st.integers(1, 5), min_size=size, max_size=size))
    names = [f"engine-{i}" for i in range(size)]
    ring = HashRing(names, weights)
    eligible = mask(data, size)
    order = ring.order(key, eligible, size)
    assert sorted(order) == [i for i in range(size) if eligible[i]]
    assert ring.pick(key, eligible) == (order[0] if order else -1)
    assert ring.order(key, eligible, 2) == order[:2]
    # Another order of the same engines in the file changes nothing.
    turned = HashRing(names[::-1], weights[::-1])
    assert [size - 1 - i for i in turned.order(key, eligible[::-1], size)] == order
    # Without one of the others, the rest keep their ranks.
    if len(order) > 1:
        gone = data.draw(st.sampled_from(order[1:]))
        rest = HashRing(names[:gone] + names[gone + 1 :], weights[:gone] + weights[gone + 1 :])
        assert (
            names[order[0]]
            == ([*names[:gone], *names[gone + 1 :]])[
                rest.pick(key, eligible[:gone] + eligible[gone + 1 :])
            ]
        )


def test_keys_spread_by_weight() -> None:
    weights = [1, 2, 3, 4]
    ring = HashRing(["a", "b", "c", "d"], weights)
    picks = Counter(ring.pick(f"session {i}".encode(), b"\1" * 4) for i in range(20000))
    for i, weight in enumerate(weights):
        assert abs(picks[i] / 20000 - weight / 10) < 0.012


def test_places_of_keys_are_the_same_for_ever() -> None:
    """Gateways of different versions must agree; a change here moves every session once."""
    ring = HashRing([f"10.0.0.{i}:8000" for i in range(8)], [1] * 8)
    keys = (b"", b"session-1", b"user@example.com", bytes(range(256)))
    assert [ring.pick(key, b"\1" * 8) for key in keys] == [4, 5, 1, 0]


def test_misuse_is_refused() -> None:
    ledger = Ledger(1, 4)
    engine = ledger.add_engine()
    engine_set = EngineSet(ledger, [engine], [1])
    for pick in (
        lambda: engine_set.least(b"\1\1", 0),
        lambda: engine_set.room(b""),
        lambda: RoundRobin([1, 1]).next(b"\1"),
        lambda: HashRing(["a"], [1]).pick(b"", b""),
    ):
        with pytest.raises(ValueError, match="the mask has"):
            pick()
    for make in (
        lambda: RoundRobin([0]),
        lambda: RoundRobin([1 << 21]),
        lambda: EngineSet(ledger, [engine], [0]),
        lambda: HashRing(["a"], [0]),
    ):
        with pytest.raises(ValueError, match="a weight must be from 1 to"):
            make()
    with pytest.raises(ValueError, match="not a handle"):
        EngineSet(ledger, [7], [1])
    with pytest.raises(ValueError, match="one weight and one limit per engine"):
        EngineSet(ledger, [engine], [1, 2])
    with pytest.raises(ValueError, match="2 names for 1 weights"):
        HashRing(["a", "b"], [1])
    assert (len(engine_set), len(RoundRobin([])), len(HashRing([], []))) == (1, 0, 0)
    assert RoundRobin([]).next(b"") == -1
