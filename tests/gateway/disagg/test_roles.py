"""Roles at run time: seen and set by the admin API and the command, and followed by requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from harness import disagg, kv

from gateway.cli import roles as cli_roles

PATH = "/v1/completions"


async def stage(sim: Any, gateway: Any, tmp_path: Path, lane: str) -> tuple[Any, list[Any], Path]:
    """Two engines that do both, one that answers only."""
    conf = disagg.Conf(lane=lane, lease_s=2.0)
    both = [sim(*disagg.connector("kv_both", conf)) for _ in range(2)]
    answers = sim(*disagg.connector("kv_consumer", conf))
    admin = tmp_path / "admin.sock"
    addresses = [engine.address for engine in both]
    text = disagg.text(conf, addresses, [answers.address], admin=admin)
    gw = await gateway(text.replace("role=prefill", "role=both"))
    return gw, [*both, answers], admin


def served(engine: Any) -> float:
    return disagg.metric(engine, "request_success_total", 'finished_reason="')


async def command(admin: Path, *words: str) -> int:
    return await asyncio.to_thread(cli_roles.main, [*words, "--admin", f"unix:{admin}", "--json"])


async def test_a_role_that_was_set_is_followed(
    sim: Any, gateway: Any, tmp_path: Path, lane: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gw, (a, b, c), admin = await stage(sim, gateway, tmp_path, lane)
    engines = gw.app.table.groups["sim"].by_address
    assert await command(admin) == 0
    shown = json.loads(capsys.readouterr().out)["sim"]
    assert [(e["declared"], e["role"]) for e in shown["engines"]] == [
        ("both", "both"), ("both", "both"), ("decode", "decode"),
    ]  # fmt: skip
    assert await command(admin, "sim", a.address, "prefill") == 0
    assert await command(admin, "sim", b.address, "decode") == 0
    await kv.until(lambda: engines[b.address].role == "decode", "the move to show")
    assert engines[a.address].role == "prefill"
    team = engines[a.address].team
    assert (team.mask, team.prefills) == (b"\0\1\1", b"\1\0\0")
    for _ in range(3):
        reply = await gw.client.post(PATH, json=disagg.fresh(), timeout=20)
        assert reply.status_code == 200
    assert a.state()["transfer"]["leases"] == 0
    capsys.readouterr()
    # The last that may prefill stays, and so does what was declared.
    assert await command(admin, "sim", a.address, "decode") == 1
    assert "no engine would be left" in capsys.readouterr().err
    assert await command(admin, "sim", c.address, "prefill") == 1
    assert "only role=both" in capsys.readouterr().err
    assert await command(admin, "sim", "127.0.0.1:1", "prefill") == 1
    assert await command(admin, "sim", a.address) == 2
    assert await command(admin, "sim", a.address, "both") == 0
    await kv.until(lambda: team.mask == b"\1\1\1", "it to do both again")
