"""Whether a load pays: what is measured, and what is made of it."""

from __future__ import annotations

import pytest

from engines.vllm.load_gate import (
    DISK,
    LIMIT_MIN_US,
    PROBE_BLOCKS,
    PROBE_S,
    PROMPTS_MAX,
    REMOTE,
    STEP_US,
    LoadGate,
    Pace,
)

TOKENS = 16
MOST_US = 2_000_000


class Daemon:
    def __init__(self) -> None:
        self.gated, self.brought = 0, []

    def expected_us(self, disk: int, remote: int) -> int:
        return 100 * disk + 1000 * remote

    def count_gated(self, blocks: int) -> None:
        self.gated += blocks

    def prefetch(self, names: list[bytes]) -> None:
        self.brought.append(names)


def gate(us_per_token: float) -> LoadGate:
    return LoadGate(Pace(us_per_token), TOKENS)


def test_a_prompt_tells_what_a_token_costs() -> None:
    pace = Pace()
    pace.begins("a", 10.0)
    assert pace.us_per_token == 0
    pace.computed("a", 1000, 10.2)
    assert pace.us_per_token == pytest.approx(200)
    # Its later parts count from its beginning.
    pace.computed("a", 1000, 10.4)
    assert pace.us_per_token == pytest.approx(200)


def test_what_is_quicker_counts_more_than_what_waited() -> None:
    pace = Pace()
    for n, took_s in enumerate((0.2, 0.2, 5.0)):
        pace.begins(str(n), 0.0)
        pace.computed(str(n), 1000, took_s)
    slow = pace.us_per_token
    assert 200 < slow < 240
    pace.begins("quick", 0.0)
    pace.computed("quick", 1000, 0.1)
    assert pace.us_per_token < slow - 0.2 * (slow - 100)


@pytest.mark.parametrize("tokens", [1, 63])
def test_short_prompts_tell_nothing(tokens: int) -> None:
    pace = Pace()
    pace.begins("a", 0.0)
    pace.computed("a", tokens, 1.0)
    assert pace.us_per_token == 0


def test_who_never_began_or_has_ended_tells_nothing() -> None:
    pace = Pace()
    pace.computed("stranger", 1000, 1.0)
    pace.begins("a", 0.0)
    pace.ends("a")
    pace.computed("a", 1000, 1.0)
    assert pace.us_per_token == 0


def test_prompts_are_remembered_up_to_a_number() -> None:
    pace = Pace()
    for n in range(PROMPTS_MAX + 1):
        pace.begins(str(n), 0.0)
    pace.computed("0", 1000, 1.0)
    assert pace.us_per_token == 0
    pace.computed("1", 1000, 1.0)
    assert pace.us_per_token == pytest.approx(1000)


def test_what_is_said_is_not_measured() -> None:
    pace = Pace(50.0)
    pace.begins("a", 0.0)
    pace.computed("a", 1000, 1.0)
    assert pace.us_per_token == 50.0


def test_nothing_is_refused_while_nothing_is_known() -> None:
    plan = gate(0.0).plan(Daemon(), 1_000_000, 1_000_000, MOST_US)
    assert plan.limit_us == MOST_US


def test_a_load_begins_where_it_is_quicker_and_has_a_limit() -> None:
    """10 blocks: computing takes 16 ms, loading 1 ms and a step's."""
    plan = gate(100.0).plan(Daemon(), 10, 0, MOST_US)
    assert (plan.daemon_us, plan.tier) == (1000, DISK)
    assert plan.limit_us == 2 * (1000 + STEP_US) + 1600
    assert gate(100.0).plan(Daemon(), 10, 10, MOST_US).tier == REMOTE
    assert gate(7.0).plan(Daemon(), 10, 0, MOST_US).limit_us == 0
    assert gate(15.0).plan(Daemon(), 10, 0, MOST_US).limit_us == LIMIT_MIN_US
    # What lies in the arena takes no time.
    assert gate(15.0).plan(Daemon(), 10, 0, MOST_US, host=9).daemon_us == 100


def test_a_tier_that_takes_longer_than_expected_is_left_alone_and_tried_again() -> None:
    daemon, doubtful = Daemon(), gate(100.0)
    names = [bytes([n]) for n in range(20)]
    loads = 0
    while (plan := doubtful.plan(daemon, 10, 0, MOST_US)).limit_us:
        loads += 1
        assert loads < 20
        doubtful.took(plan.daemon_us, plan.tier, plan.limit_us * 10)
    assert loads >= 2
    assert doubtful.plan(daemon, 10, 10, MOST_US).limit_us, "another tier's loads are another's"
    doubtful.refuse(daemon, names, 5.0)
    assert (daemon.gated, daemon.brought) == (20, [names[:PROBE_BLOCKS]])
    doubtful.refuse(daemon, names, 5.0 + PROBE_S / 2)
    assert (daemon.gated, len(daemon.brought)) == (40, 1)
    now, refusals = 5.0, 0
    while not doubtful.plan(daemon, 10, 0, MOST_US).limit_us:
        refusals, now = refusals + 1, now + PROBE_S
        doubtful.refuse(daemon, names, now)
        assert refusals < 20


def test_one_measure_of_many_moves_little() -> None:
    calm = gate(100.0)
    before = calm.expected_us(1000, DISK)
    calm.took(1000, DISK, 1000)
    assert calm.expected_us(1000, DISK) == pytest.approx(before)
    calm.took(1000, DISK, 3000)
    assert before < calm.expected_us(1000, DISK) < 1.5 * before
