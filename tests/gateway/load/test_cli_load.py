"""`kvgate load` against simulated engines, from options to the report."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.sim.process import SimEngine
from gateway.cli.program import main

TRACE = [
    {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]},
    {"timestamp": 40, "input_length": 1024, "output_length": 4, "hash_ids": [1, 3]},
    {"timestamp": 80, "input_length": 100, "output_length": 4, "hash_ids": [9]},
]


@pytest.fixture(scope="module")
def engine() -> Iterator[SimEngine]:
    with SimEngine("--enable-prompt-tokens-details", thread=True) as made:
        yield made


def loaded(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["load", *argv, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_mix_is_sent_and_measured(
    engine: SimEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "each.jsonl"
    found = loaded(
        capsys, engine.url, "--rate", "200", "--requests", "80", "--input", "20-40",
        "--output", "5", "--slo", "ttft=1m,tpot=1m,e2el=1m", "--out", str(out), "--seed", "1",
    )  # fmt: skip
    assert (found["offered"], found["completed"], found["failed"]) == (80, 80, {})
    tokens = found["tokens"]
    assert tokens["counted_out"] == tokens["asked_out"] == 400
    assert tokens["counted_in"] == tokens["asked_in"]
    assert found["ttft_s"]["count"] == 80 and found["itl_s"]["count"] == 320
    assert found["ttft_s"]["mean"]["low"] <= found["ttft_s"]["mean"]["value"]
    assert found["ttft_s"]["mean"]["value"] <= found["e2el_s"]["mean"]["value"]
    assert found["goodput"]["attainment"] == 1.0 and found["goodput"]["good"] == 80
    each = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(each) == 80 and all(one["end"] == "completed" for one in each)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_trace_shares_its_blocks(
    engine: SimEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path, endpoint: str
) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in TRACE))
    argv = (engine.url, "--trace", str(trace), "--endpoint", endpoint)
    found = loaded(capsys, *argv, "--seed", "7")["tokens"]
    assert found["counted_out"] == 12
    assert found["counted_in"] == pytest.approx(1724, abs=0 if endpoint == "completions" else 6)
    # Of the block that two prompts have in common, whatever a template puts before it.
    assert found["cached"] == pytest.approx(512, abs=0 if endpoint == "completions" else 32)


def test_prompts_whose_blocks_are_unknown_are_said_to_share_nothing(
    engine: SimEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "t.jsonl"
    rows = [TRACE[0], {name: value for name, value in TRACE[1].items() if name != "hash_ids"}]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["load", engine.url, "--trace", str(trace), "--seed", "11", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["completed"] == 2
    assert "assumed: prefixes: requests without block hashes (1 of 2) share nothing" in said.err


def test_text_says_what_was_missed_and_why_requests_failed(
    engine: SimEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["load", engine.url, "--rate", "500", "--requests", "9", "--model", "none",
                 "--slo", "ttft=1s"]) == 1  # fmt: skip
    text, said = capsys.readouterr()
    assert "kvgate: no request was answered: 9 status 404" in said
    assert "failed 9 (9 status 404)" in text and "attainment 0.0%" in text and "9 error" in text
    assert "status 404: {" in text


def test_a_run_with_answers_is_done_whatever_failed(
    engine: SimEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The second prompt is longer than the model can be."""
    trace = tmp_path / "t.jsonl"
    row = {"timestamp": 0, "input_length": 20, "output_length": 4}
    trace.write_text("\n".join(map(json.dumps, [row, row | {"input_length": 1_000_000}])))
    found = loaded(capsys, engine.url, "--trace", str(trace))
    assert found["completed"] == 1 and sum(found["failed"].values()) == 1


def test_the_highest_rate_is_looked_for(
    engine: SimEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [engine.url, "--find", "--slo", "ttft=1m", "--rate", "2000", "--requests", "9"]
    assert main(["load", *argv, "--model", "none"]) == 1
    text, said = capsys.readouterr()
    assert "no rate kept the SLO for 90%" in text
    assert re.search("no request was answered: [0-9]+ status 404", said)
    found = loaded(capsys, *argv, "--output", "1")
    # Nine requests are soon all under way, whatever the rate.
    assert found["verdict"] == "unresolved" and found["max_goodput_rate"] > 2000
    assert all(probe["kept"] and probe["found"]["good"] == 9 for probe in found["probes"])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("http://127.0.0.1:1",), "--trace FILE, or --rate R"),
        (("http://127.0.0.1:1", "--rate", "1", "--find"), "--find needs --slo"),
        (("http://127.0.0.1:1", "--rate", "x"), '"x" is not a number above 0'),
        (("http://127.0.0.1:1", "--rate", "1", "--input", "9-3"), '"9-3" is not a number of'),
        (("http://127.0.0.1:1", "--rate", "1", "--slo", "x=1s"), "ttft=TIME or tpot=TIME or e2el"),
        (("http://127.0.0.1:1", "--rate", "1", "--header", "a b: c"), "is not a header"),
        (("nowhere", "--rate", "1"), '"nowhere" is not a URL'),
    ],
)
def test_usage(argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", *argv]) == 2
    assert said in capsys.readouterr().err


def test_one_request_has_no_rate(engine: SimEngine, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [engine.url, "--rate", "1", "--requests", "1", "--find", "--slo", "ttft=1s"]
    assert main(["load", *argv]) == 2
    assert "--requests N, at least 2" in capsys.readouterr().err


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "http://127.0.0.1:1", "--rate", "1"]) == 1
    assert "cannot reach http://127.0.0.1:1" in capsys.readouterr().err


def test_an_interrupt_prints_what_there_is(engine: SimEngine) -> None:
    argv = [sys.executable, "-m", "gateway", "load", engine.url, "--rate", "0.01",
            "--requests", "3", "--cv", "0", "--json"]  # fmt: skip
    before = engine.state()["steps"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        engine.wait_for(lambda state: state["steps"] > before, 60.0)
        process.send_signal(signal.SIGINT)
        found = json.loads(process.communicate(timeout=60)[0])
    assert process.returncode == 0 and found["stopped"] and found["offered"] >= 1
