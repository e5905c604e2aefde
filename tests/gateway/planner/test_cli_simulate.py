"""`kvgate simulate`: from a trace file to a table or a JSON line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli.program import main

RECORDED = Path(__file__).parents[2] / "vectors" / "mooncake_conversation_400.jsonl"
SLO = ("--slo", "ttft=2s,tpot=50ms")


def run(*options: str) -> int:
    return main(["simulate", "--trace", str(RECORDED), "--requests", "120", *options])


def test_json_says_what_was_run_and_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = "kvgate,dynamo"
    assert run("--json", "--policy", chosen, "--engines", "4", "--kv-tokens", "300k", *SLO) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trace"]["requests"] == 120 and found["trace"]["tick_s"] == 3.0
    assert found["setup"]["kv_tokens"] == 300_000 and found["setup"]["ttft_s"] == 2.0
    assert list(found["policies"]) == ["kvgate", "dynamo"]
    for one in found["policies"].values():
        assert 0 < one["bound"] <= 1.05 and 0 < one["attainment"] <= 1
        assert one["ttft_s"] == sorted(one["ttft_s"]) and len(one["tpot_s"]) == 3
        assert 0 <= one["hit"] <= found["trace"]["endless_hit"]


def test_the_table_has_every_policy_best_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--speed", "2", "--seeds", "2", *SLO) == 0
    table = capsys.readouterr().out.split("\n\n")[1].splitlines()
    rows = [line.split() for line in table[1:]]
    shares = [float(row[1]) for row in rows]
    assert len(rows) == 12 and shares == sorted(shares, reverse=True)
    assert "120 requests" not in "".join(table)


def test_late_events_and_several_gateways_are_options(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--policy", "kvgate", "--gateways", "3", "--event-delay", "500ms")
    assert run(*options, "--event-loss", "0.01", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["setup"]["delay_s"] == 0.5 and found["setup"]["gateways"] == 3


@pytest.mark.parametrize(
    ("options", "status", "wanted"),
    [
        (("--policy", "best"), 1, 'there is no policy "best"; there are kvgate'),
        (("--profile", "b300"), 1, "no profile is called `b300`"),
        (("--engines", "0"), 1, "`engines` must be from 1"),
        (("--slo", "ttft=fast"), 2, '"ttft=fast": a time such as'),
        (("--slo", "e2e=1s"), 2, '"e2e=1s" is not ttft=TIME or tpot=TIME'),
        (("--kv-tokens", "4x"), 2, '"4x" is not a number such as'),
        (("--trace", "nowhere.jsonl"), 1, "nowhere.jsonl: No such file"),
    ],
)
def test_mistakes_are_said(
    options: tuple[str, ...], status: int, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*options) == status
    assert wanted in capsys.readouterr().err
