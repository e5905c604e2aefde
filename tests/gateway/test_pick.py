"""Which engine is picked, and which never is."""

from collections import Counter
from time import perf_counter
from types import SimpleNamespace as Fake

import pytest

from gateway.conf.model import Balance, EngineLine, Template, Upstream, Var
from gateway.conf.model_kv import KvSettings
from gateway.fleet.engines import EngineTable, Group
from gateway.fleet.ledger import Ledger
from gateway.load.goodput import Slo
from gateway.pick import ask, pick, pinned


def line(number: int, **over: object) -> EngineLine:
    return EngineLine(f"e{number}:1", f"e{number}", 1, "", **over)  # type: ignore[arg-type]


def table(
    *lines: EngineLine, method: str = "round_robin", two: bool = False
) -> tuple[EngineTable, Group]:
    made = EngineTable(Ledger())
    key = Template((Var("http_x_key"),)) if method == "hash" else None
    balance = Balance(method, key, True, two)
    made.apply([Upstream("up", lines, balance=balance)], {}, 0.0)
    return made, made.groups["up"]


def take(group: Group, times: int, **over: object) -> list[str]:
    found = []
    for seed in range(times):
        engine = pick(group, **{"key": b"", "tried": (), "now": 1.0, "seed": seed, **over})  # type: ignore[arg-type]
        found.append("-" if engine is None else engine.address[:-2])
    return found


def test_round_robin_is_smooth_and_weighted() -> None:
    _, group = table(line(0, weight=2), line(1), line(2))
    assert Counter(take(group, 400)) == {"e0": 200, "e1": 100, "e2": 100}
    assert take(group, 4) in (["e0", "e1", "e2", "e0"], ["e0", "e2", "e1", "e0"])


def test_upstreams_have_turns_of_their_own() -> None:
    """PS#916: state shared over models made interleaved requests stick to one engine each."""
    made = EngineTable(Ledger())
    made.apply([Upstream(n, (line(0), line(1))) for n in ("a", "b")], {}, 0.0)
    found = {"a": [], "b": []}  # type: dict[str, list[str]]
    for _ in range(4):
        for name, seen in found.items():
            seen += take(made.groups[name], 1)
    assert found["a"] == found["b"] == ["e0", "e1", "e0", "e1"]


def test_least_conn_and_ties_at_random() -> None:
    made, group = table(line(0), line(1), line(2), method="least_conn")
    assert set(take(group, 60)) == {"e0", "e1", "e2"}
    for engine in group.engines[:2]:
        made.ledger.take(engine.slot)
    assert set(take(group, 20)) == {"e2"}


def test_hash_sticks_and_moves_little() -> None:
    _, group = table(*[line(n) for n in range(5)], method="hash")
    keys = [b"k%d" % n for n in range(200)]
    before = {key: take(group, 1, key=key)[0] for key in keys}
    assert before == {key: take(group, 1, key=key)[0] for key in keys}
    group.set_health(group.engines[2], False, "gone", 1.0)
    after = {key: take(group, 1, key=key)[0] for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] != "e2")
    assert "e2" not in after.values()


def test_missing_hash_key_spreads() -> None:
    """miles#1657: an absent key hashed to a constant sends everything to one engine."""
    _, group = table(line(0), line(1), line(2), method="hash")
    assert len(set(take(group, 60, key=b""))) == 3


def test_down_unhealthy_and_tried_are_never_picked() -> None:
    _, group = table(line(0, down=True), line(1), line(2))
    group.set_health(group.engines[1], False, "why", 0.0)
    assert set(take(group, 10)) == {"e2"}
    assert take(group, 1, tried=(group.engines[2],)) == ["-"]


def test_backups_only_when_no_primary_is_left() -> None:
    _, group = table(line(0), line(1, backup=True))
    assert set(take(group, 5)) == {"e0"}
    group.set_health(group.engines[0], False, "why", 0.0)
    assert set(take(group, 5)) == {"e1"}


def test_backups_serve_while_primaries_are_benched() -> None:
    _, group = table(line(0), line(1, backup=True))
    group.failed(group.engines[0], 1.0, "reset")
    assert set(take(group, 5, now=2.0)) == {"e1"}


def test_benched_engine_comes_back_for_one_trial() -> None:
    _, group = table(line(0, fail_timeout_s=10.0), line(1))
    group.failed(group.engines[0], 1.0, "reset")
    assert set(take(group, 4, now=5.0)) == {"e1"}
    assert take(group, 4, now=11.5).count("e0") == 1
    group.succeeded(group.engines[0], 12.0)
    assert take(group, 4, now=12.0).count("e0") == 2


def test_all_benched_are_tried_anyway() -> None:
    _, group = table(line(0), line(1), line(2, down=True))
    for engine in group.engines[:2]:
        group.failed(engine, 1.0, "reset")
    assert set(take(group, 4, now=1.5)) == {"e0", "e1"}


def test_a_lone_engine_is_never_benched() -> None:
    _, group = table(line(0))
    for now in range(10):
        group.failed(group.engines[0], float(now), "reset")
    assert take(group, 1, now=10.0) == ["e0"]


@pytest.mark.parametrize("method", ["round_robin", "least_conn", "hash", "random", "ip_hash"])
def test_max_conns(method: str) -> None:
    made, group = table(line(0, max_conns=2), line(1, max_conns=1), method=method)
    found = []
    for _ in range(4):
        engine = pick(group, b"key", (), 1.0, 7)
        found.append(engine)
        if engine is not None:
            made.ledger.take(engine.slot)
    assert found[3] is None and Counter(e.address for e in found[:3] if e) == {"e0:1": 2, "e1:1": 1}


def test_pinned_ignores_marks_but_not_death() -> None:
    _, group = table(line(0), line(1))
    engine = group.engines[0]
    group.failed(engine, 1.0, "reset")
    assert pinned(engine, ()) is engine
    assert pinned(engine, (engine,)) is None
    group.set_health(engine, False, "gone", 1.5)
    assert pinned(engine, ()) is None


@pytest.mark.parametrize("method", ["round_robin", "least_conn", "hash", "random", "ip_hash"])
def test_a_thousand_engines_cost_little(method: str) -> None:
    """SMG#1692: work per request grew with the engines. The bound is 100 us, best of many."""
    _, group = table(*[line(n) for n in range(1000)], method=method)
    best = 1.0
    for seed in range(50):
        start = perf_counter()
        pick(group, b"k%d" % seed, (), 1.0, seed)
        best = min(best, perf_counter() - start)
    assert best < 100e-6


def test_reload_keeps_engines_and_turns() -> None:
    made, group = table(line(0), line(1), line(2))
    assert take(group, 1) == ["e0"]
    kept = group.engines[1]
    made.ledger.take(kept.slot)
    made.apply([Upstream("up", (line(1, weight=1), line(2), line(3)))], {}, 2.0)
    group = made.groups["up"]
    assert group.engines[0] is kept and made.ledger.in_flight(kept.slot) == 1
    assert "e0" not in take(group, 6, now=3.0)
    made.ledger.give(kept.slot)
    assert made.ledger.in_flight(kept.slot) == 0


def test_random_two_takes_the_idler_and_draws_by_weight() -> None:
    made, group = table(line(0), line(1), line(2, weight=4), method="random", two=True)
    for _ in range(50):
        made.ledger.take(group.engines[0].slot)
    drawn = Counter(
        e.address for seed in range(300) if (e := pick(group, b"", (), 1.0, seed * 7919))
    )
    assert "e0:1" not in drawn and drawn["e2:1"] > drawn["e1:1"] > 0


def test_a_request_may_ask_for_another_method() -> None:
    _, group = table(line(0), line(1), line(2))
    same = {pick(group, b"s1", (), 1.0, seed, "hash") for seed in range(9)}
    assert len(same) == 1


def test_an_engine_is_weighed_by_the_slo_of_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upstream's is what its team asks anyhow; a header stands in place of either."""
    told: list[dict[str, float]] = []
    monkeypatch.setattr("gateway.pick.Ask", lambda **asked: told.append(asked))
    usual = object()
    group = Fake(conf=Fake(kv=KvSettings(ttft_s=2.0, tpot_s=0.05)))
    team = Fake(ask=usual, group=group, ring=None)

    def asked(slo: Slo | None, **wishes: float) -> tuple[float, float] | object:
        kv = Fake(wishes=wishes, session=b"", lora=None, slo=slo)
        found = ask(team, kv, b"\1")  # type: ignore[arg-type]
        return found or (told[-1]["ttft_slo_ms"], told[-1]["tpot_slo_ms"])

    assert asked(None) is usual and asked(Slo(2.0, 0.05, 9.0)) is usual
    assert asked(Slo(0.5)) == (500.0, 0.0) and asked(Slo()) == (0.0, 0.0)
    assert asked(Slo(0.5, 0.03), **{"ttft-slo": 1.0}) == (1000.0, 30.0)
    assert asked(None, **{"ttft-slo": 1.0}) == (1000.0, 50.0)
