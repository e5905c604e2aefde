"""The monitor's part in roles that follow the load, at times that a test sets."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from harness import disagg, kv

from gateway.disagg import elastic as elastic_module
from gateway.disagg.elastic import Elastic
from gateway.disagg.metrics import DisaggCollector
from native._core import Prompt

ELASTIC = "slo ttft=1s tpot=20ms; roles elastic dwell=10s;"


async def test_prompts_that_are_too_many_move_an_engine_and_a_reload_keeps_it(
    sim: Any, gateway: Any, tmp_path: Path
) -> None:
    conf = disagg.Conf(upstream=ELASTIC)
    engines = [sim(*disagg.connector("kv_both", conf)).address for _ in range(3)]
    text = disagg.text(conf, engines, [], admin=tmp_path / "admin.sock")
    gw = await gateway(text.replace("role=prefill", "role=both"))
    table = gw.app.table
    team = table.groups["sim"].teams[0]
    elastic = Elastic(table, gw.app.memory.disagg)
    elastic.sync()
    now = monotonic()
    tickets = [
        team.scorer.at(place, Prompt.of_list([n] + [7] * 30_000), now).start(now)
        for place in range(3)
        for n in range(60)
    ]
    for second in range(30):
        elastic.look(now + second)
    moved = [engine for engine in team.engines if table.ledger.core.role(engine.slot) == 2]
    assert moved and len(moved) < 3
    gw.app.pulse.look(now, again=True)
    assert [engine.role for engine in team.engines].count("prefill") == len(moved)
    counts = gw.app.memory.disagg
    families = {family.name: family for family in DisaggCollector(counts, table).collect()}
    rows = families["kvgate_role_engines"].samples
    engines_of = {row.labels["role"]: row.value for row in rows}
    assert engines_of == {"prefill": len(moved), "decode": 0, "both": 3 - len(moved)}
    assert counts.count("role/prefill") == len(moved)
    # The same engines: what is known of them stays.
    elastic.sync()
    for ticket in tickets:
        ticket.end(now + 31.0, 1)
    for second in range(300, 400):
        elastic.look(now + second)
    gw.app.pulse.look(now, again=True)
    assert [engine.role for engine in team.engines] == ["both"] * 3
    assert counts.count("role/both") == len(moved)
    await elastic.close()


async def test_a_fault_while_looking_does_not_end_it(
    sim: Any,
    gateway: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(elastic_module, "LOOK_S", 0.001)
    conf = disagg.Conf(upstream=ELASTIC)
    engines = [sim(*disagg.connector("kv_both", conf)).address for _ in range(2)]
    text = disagg.text(conf, engines, [], admin=tmp_path / "admin.sock")
    gw = await gateway(text.replace("role=prefill", "role=both"))
    elastic = Elastic(gw.app.table, gw.app.memory.disagg)
    looks: list[float] = []

    def look(now: float) -> None:
        looks.append(now)
        raise ZeroDivisionError("a fault of the test's")

    monkeypatch.setattr(elastic, "look", look)
    elastic.sync()
    await kv.until(lambda: len(looks) > 2, "more looks behind a fault")
    await elastic.close()
    assert "a fault of the test's" in caplog.text
