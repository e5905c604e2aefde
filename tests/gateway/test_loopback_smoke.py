"""The loop-back bench at tiny scale: a slice goes through the gateway, and what is compared is
computed right. No figure of speed is judged.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"
PARTS = ("agreement", "scaled")
ROWS = 24
SHARED = 4  # blocks that all prompts begin with


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The bench's modules, which are scripts beside each other and no package."""
    monkeypatch.syspath_prepend(str(BENCH))
    modules: dict[str, ModuleType] = {name: importlib.import_module(name) for name in PARTS}
    yield SimpleNamespace(**modules)
    for name in PARTS:
        del sys.modules[name]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with a trace in which every prompt begins alike."""
    with (tmp_path / "conversation_trace.jsonl").open("w") as file:
        for row in range(ROWS):
            blocks = [*range(SHARED), 100 + 2 * row, 101 + 2 * row]
            found = {"timestamp": row * 300, "input_length": 512 * len(blocks) - 100,
                     "output_length": 40, "hash_ids": blocks}  # fmt: skip
            file.write(json.dumps(found) + "\n")
    return tmp_path


def test_a_slice_goes_through_the_gateway(traces: Path) -> None:
    words = ("--requests", ROWS, "--engines", 2, "--serial", ROWS, "--pace", 0.02, "--traces",
             traces, "--policies", "kvgate,least_conn", "--json", "-")  # fmt: skip
    command = [sys.executable, str(BENCH / "loopback.py"), *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=300, check=True)
    line: dict[str, Any] = json.loads(done.stdout)
    rows = line["policies"]
    assert list(rows) == ["kvgate", "least_conn"]
    assert all(row["here"]["failed"] == [] for row in rows.values())
    assert all(row["here"]["hit_tokens"] >= SHARED * 16 for row in rows.values())
    assert rows["kvgate"]["simulated"]["hit_tokens"] == (ROWS - 1) * SHARED * 16
    assert (line["serial"]["requests"], line["serial"]["trust"]) == (ROWS, {"exact": 2})
    assert line["serial"]["found"] >= SHARED * 16
    assert line["errors"]["kvgate"]["requests"] == ROWS
    assert set(line["agreement"]) == {"in_time", "hit_tokens"}


def test_a_missing_trace_is_said_with_a_hint(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "loopback.py"), "--traces", str(tmp_path)]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=60, text=True, check=False)
    assert done.returncode == 1
    assert "KVGATE_TRACES" in done.stderr


def test_a_slice_is_smaller_and_shares_what_it_shared(bench: SimpleNamespace, traces: Path) -> None:
    calls = bench.scaled.read(traces / "conversation_trace.jsonl", 10)
    assert [call.at_s for call in calls] == sorted(call.at_s for call in calls)
    for call in calls:
        assert (call.input, call.output) == (-(-(6 * 512 - 100) // 32), 5)
        assert len(call.ids()) == call.input
    same = SHARED * bench.scaled.BLOCK
    assert len({tuple(call.ids()[:same]) for call in calls}) == 1
    assert len({tuple(call.ids()[: same + 1]) for call in calls}) == 10
    trace = bench.scaled.trace(calls)
    assert (len(trace), trace.input_tokens) == (10, sum(call.input for call in calls))
    assert trace.reusable_tokens() == 9 * same


def test_a_smaller_prompt_takes_an_engine_as_long(bench: SimpleNamespace) -> None:
    from native._core import Fit

    machine = bench.scaled.Machine()
    whole = Fit(machine.profile, None, machine.chunk)
    small = machine.fit()
    for tokens, there in ((8192, 0), (4096, 32768), (512, 512)):
        expected = whole.prefill_ms(tokens, there)
        assert small.prefill_ms(tokens // 32, there // 32) == pytest.approx(expected)
    assert machine.constants(0.5)["base"] == machine.constants()["base"] / 2


def test_orders_agree_where_scores_are_apart(bench: SimpleNamespace) -> None:
    a = {"x": 0.9, "y": 0.7, "z": 0.5}
    tau, swapped = bench.agreement.tau, bench.agreement.swapped
    assert bench.agreement.order(a) == ["x", "y", "z"]
    assert (tau(a, {"x": 3, "y": 2, "z": 1}, 0.0), swapped(a, a, 0.0)) == (1.0, [])
    opposite = {"x": 0.1, "y": 0.5, "z": 0.9}
    assert (tau(a, opposite, 0.0), len(swapped(a, opposite, 0.0))) == (-1.0, 3)
    one_off = {"x": 0.7, "y": 0.9, "z": 0.5}
    assert swapped(a, one_off, 0.1) == ["x > y"]
    assert tau(a, one_off, 0.1) == pytest.approx(1 / 3)
    assert tau(a, one_off, 0.25) == 1.0, "no pair but x and z is apart in both"


def test_errors_are_counted_by_their_sign_and_size(bench: SimpleNamespace) -> None:
    found = bench.agreement.errors([(64, 64), (64, 0), (0, 16), (32, 32)], 1000)
    assert (found["share_zero"], found["too_many"], found["too_few"]) == (0.5, 1, 1)
    assert (found["mean"], found["mean_abs"]) == (12.0, 20.0)
    assert (found["abs_p50"], found["abs_p99"], found["abs_max"]) == (16.0, 64.0, 64.0)
    assert (found["expected"], found["found"], found["abs_over_prompts"]) == (160, 112, 0.08)
    assert bench.agreement.errors([], 0)["share_zero"] == 0.0
