"""Recorded traffic of four formats becomes one trace; what is wrong is named by file and line."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest

from gateway.planner.trace_files import BadTrace, load
from native._core import Fit, Trace, simulate

RECORDED = Path(__file__).parents[2] / "vectors" / "mooncake_conversation_400.jsonl"


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def arrivals(trace: Trace) -> list[float]:
    run = simulate(trace, "round_robin", Fit())
    return list(array("d", run.outcomes())[0::4])


def test_mooncake_with_its_ticks_and_its_reuse() -> None:
    found = load(RECORDED)
    assert (found.format, len(found.trace), found.tick_s) == ("mooncake", 400, 3.0)
    rows = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    assert found.trace.input_tokens == sum(row["input_length"] for row in rows)
    assert found.trace.output_tokens == sum(row["output_length"] for row in rows)
    # The definition of an endless cache's hits, done by hand.
    seen: set[int] = set()
    hits = 0
    for row in rows:
        known = 0
        while known < len(row["hash_ids"]) and row["hash_ids"][known] in seen:
            known += 1
        hits += min(known * 512, row["input_length"])
        seen |= set(row["hash_ids"])
    assert found.trace.reusable_tokens() == hits > 0
    assert len(load(RECORDED, limit=25).trace) == 25


def test_bailian_counts_in_seconds_and_blocks_of_16(tmp_path: Path) -> None:
    row = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 2.5, "input_length": 40,
           "output_length": 7, "type": "text", "turn": 1, "hash_ids": [5, -6, 7]}  # fmt: skip
    later = {**row, "chat_id": 2, "timestamp": 9.25, "hash_ids": [5, -6, 8]}
    found = load(lines(tmp_path / "b.jsonl", later, row))
    assert (found.format, len(found.trace), found.tick_s) == ("bailian", 2, 0.0)
    assert found.trace.reusable_tokens() == 32
    assert arrivals(found.trace) == [0.0, 6.75]


EPOCH_MS = 1_780_000_000_000


@pytest.mark.parametrize("head", [{"kvgate_trace": 1, "block": 512}, None])
def test_times_count_from_the_first_arrival(tmp_path: Path, head: object) -> None:
    """What a run is divided by must not be the time since the epoch."""
    made = []
    for start in (0, EPOCH_MS):
        every = [{"timestamp": start + at, "input_length": 40, "output_length": 7, "hash_ids": [1]}
                 for at in (0, 500, 2000)]  # fmt: skip
        found = load(lines(tmp_path / f"{start}.jsonl", *([head] if head else []), *every))
        assert arrivals(found.trace) == pytest.approx([0.0, 0.5, 2.0], abs=1e-6)
        made.append(simulate(found.trace, "round_robin", Fit()).end_s)
    assert made[1] == pytest.approx(made[0], abs=1e-3) and made[0] < 60


def test_azure_has_times_of_day_and_shares_nothing(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.2299600,4808,8\n"
    )
    found = load(path)
    assert (found.format, found.trace.reusable_tokens()) == ("azure", 0)
    assert arrivals(found.trace) == pytest.approx([0.0, 0.25])


def test_burstgpt_rows_without_an_answer_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n"
    )
    found = load(path)
    assert (found.format, len(found.trace), found.skipped) == ("burstgpt", 2, 1)
    assert found.trace.input_tokens == 472 + 417


def test_even_times_of_less_than_a_second_are_no_ticks(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 40 * i, "input_length": 9, "output_length": 1, "hash_ids": [i]}
        for i in range(50)
    ]
    assert load(lines(tmp_path / "t.jsonl", *rows)).tick_s == 0.0


GOOD = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}


@pytest.mark.parametrize(
    ("bad", "wanted"),
    [
        ({**GOOD, "hash_ids": [1]}, r"t\.jsonl:2: 600 tokens are 2 blocks of 512, not 1"),
        ({**GOOD, "input_length": 0, "hash_ids": []}, r"t\.jsonl:2: 0 tokens in"),
        ({**GOOD, "timestamp": -1}, r"t\.jsonl:2: it arrives at -0\.001 s"),
        ({"timestamp": 0}, r"t\.jsonl:2: 'input_length'"),
        ([1], r"t\.jsonl:2: "),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, bad: object, wanted: str) -> None:
    with pytest.raises(BadTrace, match=wanted):
        load(lines(tmp_path / "t.jsonl", GOOD, bad))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    for text in ("", "a,b\n1,2\n", '{"a": 1}\n', "{nonsense\n"):
        path.write_text(text)
        with pytest.raises(BadTrace, match=r"x\.csv:1: "):
            load(path)
    with pytest.raises(BadTrace, match="no request with an answer"):
        load(lines(tmp_path / "none.jsonl", {**GOOD, "output_length": 0}))
