"""Plans for recorded traffic: what is replayed, and what is said of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.cli.plan_fit import main
from gateway.planner import findings
from gateway.planner.fit import Goal, Means, Planner
from gateway.planner.queueing import Layout
from gateway.planner.replay import OURS, Setup, run
from gateway.planner.trace_files import rows
from gateway.planner.trace_formats import Row
from native._core import Duet

TRACE = Path(__file__).parents[2] / "vectors" / "mooncake_conversation_400.jsonl"
GOAL = Goal(2.0, 0.05)
MEANS = Means(link_gb_s=50.0)


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner(rows(TRACE), GOAL, lambda *_: None)


def test_options_are_replayed_and_come_best_first(planner: Planner) -> None:
    options = planner.options(4, MEANS)
    found = [option.attained(GOAL) for option in options]
    assert found == sorted(found, reverse=True) and len(options) >= 4
    assert all(option.run is not None for option in options)
    assert {option.layout.prefill > 0 for option in options} == {True, False}


@pytest.mark.parametrize(
    ("layout", "name", "roles"),
    [
        (Layout(4, 1, both=2), "1P1D + 2 both", "pdmm"),
        (Layout(4, 1, both=3, auto=True), "1P + 3 both (auto)", "pmmm"),
        (Layout(4, 0, both=4, auto=True), "4 both (auto)", "mmmm"),
        (Layout(4, 0, both=1), "3D + 1 both", "dddm"),
        (Layout(4, 3), "3P1D", "pppd"),
        (Layout(4, 0, 512), "4 aggregated, chunk 512", None),
    ],
)
def test_engines_that_do_both_are_replayed_as_such(
    planner: Planner, layout: Layout, name: str, roles: str | None
) -> None:
    assert layout.name == name
    found = planner.option(layout, MEANS)
    assert (found.predicted is None) == (not layout.has_formula)
    duet = None if roles is None else Duet(roles, 0 if layout.auto else 1, MEANS.link_gb_s)
    setup = Setup(4, chunk_tokens=layout.chunk_tokens, ttft_s=2.0, tpot_s=0.05)
    wanted = run(planner.recorded, setup, OURS, 0, duet=duet)
    assert found.run is not None and found.run.outcomes() == wanted.outcomes()


def test_engines_that_do_both_are_not_ones_that_only_answer(planner: Planner) -> None:
    """One engine for all prompts is far too few here."""
    mixed = planner.option(Layout(4, 1, both=2), MEANS).attained(GOAL)
    assert mixed > planner.option(Layout(4, 1), MEANS).attained(GOAL) + 0.2


def test_a_run_is_made_once(planner: Planner) -> None:
    layout = Layout(4, 2, link_gb_s=50.0)
    assert planner.replay(layout, MEANS) is planner.replay(layout, MEANS)


def test_the_fewest_engines_reach_the_target_and_one_fewer_does_not() -> None:
    goal = Goal(5.0, 0.1, 0.9)
    planner = Planner(rows(TRACE), goal, lambda *_: None)
    found = planner.needed(16, MEANS)
    assert found is not None
    count, option = found
    assert option.attained(goal) >= 0.9
    assert count > 1 and planner.options(count - 1, MEANS)[0].attained(goal) < 0.9


def test_a_verdict_has_the_margin_of_the_runs(planner: Planner) -> None:
    options = planner.options(8, MEANS)
    said = findings.verdict(options, GOAL)
    one, two = findings.of_kind(options, False), findings.of_kind(options, True)
    assert one is not None and two is not None
    assert said.margin == pytest.approx(two.attained(GOAL) - one.attained(GOAL))
    assert two.layout.name in said.sentence and one.layout.name in said.sentence


def test_one_engine_cannot_be_split(planner: Planner) -> None:
    said = findings.verdict(planner.options(1, MEANS), GOAL)
    assert "cannot be split" in said.sentence


def test_less_work_or_more_memory_never_hurts_much(planner: Planner) -> None:
    options = planner.options(8, MEANS)
    found = {swing.what: swing for swing in findings.swings(planner, options, MEANS)}
    assert found["rate -30%"].aggregated >= found["rate +30%"].aggregated
    assert {name.split()[0] for name in found} >= {"rate", "bandwidth"}


def test_what_is_never_found_cached_cannot_be_found_less() -> None:
    unread = replace(rows(TRACE), rows=[Row(n / 2, 900, 20) for n in range(60)])
    planner = Planner(unread, GOAL, lambda *_: None)
    found = findings.swings(planner, planner.options(2, MEANS), MEANS)
    assert [swing.what for swing in found if swing.what.startswith("hit rate")] == []


def test_the_nearest_relaxation_is_just_enough(planner: Planner) -> None:
    hard = replace(GOAL, ttft_s=0.8)
    option = planner.options(8, MEANS)[0]
    found = findings.relaxation(option, hard)
    assert found.ttft_s is not None and option.run is not None
    assert findings.attained(option.run, replace(hard, ttft_s=found.ttft_s)) >= hard.target
    less = replace(hard, ttft_s=found.ttft_s * 0.98)
    assert findings.attained(option.run, less) < hard.target


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        (Goal(600.0, 60.0), "nothing, as no request missed the SLO; prefill is busy"),
        (Goal(0.0, 0.0), "nothing, as no request missed the SLO; "),
        (Goal(1e-9, 0.0), "the first token is missed most (first token 100.0% of requests, per"),
        (Goal(0.0, 1e-9), "time per token is missed most (first token 0.0% of requests, per"),
    ],
)
def test_a_bottleneck_is_what_is_missed(planner: Planner, goal: Goal, said: str) -> None:
    assert findings.bottleneck(planner.option(Layout(4), MEANS), goal).startswith(said)


def test_what_is_missed_alike_is_said_alike() -> None:
    alike = replace(rows(TRACE), rows=[Row(n / 2, 900, 20) for n in range(60)])
    option = Planner(alike, GOAL, lambda *_: None).option(Layout(2), MEANS)
    said = findings.bottleneck(option, Goal(1e-9, 1e-9))
    assert said.startswith("the first token and time per token are missed alike (first token 100")


def test_a_verdict_says_where_the_better_of_the_two_changes(planner: Planner) -> None:
    said = findings.verdict(planner.options(8, MEANS), GOAL)
    assert said.crossover_s
    at = " and ".join(f"{s * 1e3:.0f}" for s in said.crossover_s)
    wanted = f"; with other limits per token the better of the two changes at {at} ms."
    assert said.sentence.endswith(wanted)


def test_an_slo_that_would_be_reached_is_said_in_times(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--trace", str(TRACE), "--engines", "8"]
    assert main([*argv, "--slo", "ttft=1s,tpot=22ms"]) == 0
    text = capsys.readouterr().out
    found = re.search(r"would reach 90% with (.*)", text)
    assert found is not None
    both = re.search(r"TTFT <= ([0-9.]+) s and TPOT <= (\d+) ms \(([0-9.]+) times both", found[1])
    assert both is not None
    ttft, tpot, by = map(float, both.groups())
    assert (ttft, tpot) == (pytest.approx(by, abs=0.011), pytest.approx(by * 22, abs=0.6))
    # One SLO alone has no second way of saying it.
    assert main([*argv, "--slo", "ttft=1s"]) == 0
    assert "both" not in capsys.readouterr().out.split("would reach")[1]


def test_the_command_gives_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--trace", str(TRACE), "--slo", "ttft=2s,tpot=50ms", "--engines", "4"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert text.startswith("Disaggregation")
    assert "bottleneck:" in text and "assumed:" in text and "rate -30%" in text
    assert main([*argv, "--json", "--needed"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["needed"]["engines"] >= 1 and found["options"][0]["goodput_per_gpu"] > 0


def test_goodput_is_of_the_traffic_whenever_it_was_recorded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Our own recordings count from the epoch."""
    found = []
    for start in (0, 1_780_000_000_000):
        file = tmp_path / f"{start}.trace"
        made = [
            {"timestamp": start + 250 * n, "input_length": 700, "output_length": 9,
             "hash_ids": [n % 7]}
            for n in range(100)
        ]  # fmt: skip
        file.write_text("\n".join(map(json.dumps, [{"kvgate_trace": 1, "block": 512}, *made])))
        argv = ["--trace", str(file), "--slo", "ttft=2s,tpot=50ms", "--engines", "2"]
        assert main([*argv, "--gpus-per-engine", "1", "--json"]) == 0
        best = json.loads(capsys.readouterr().out)["options"][0]
        found.append(best["goodput_per_gpu"])
    # All are in time: four a second, of two GPUs, but for the tail of the last answer.
    assert found == pytest.approx([2.0, 2.0], rel=0.05)


def test_one_of_a_thing_is_not_several(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--trace", str(TRACE), "--slo", "ttft=10m", "--engines", "1", "--requests", "1"]
    assert main([*argv, "--gpus-per-engine", "1", "--needed"]) == 0
    text = capsys.readouterr().out
    assert ": 1 request, " in text and "of 1 GPU\n" in text and "1 (1 GPU), " in text
    assert re.findall(r"\b1 [a-zA-Z]+s\b", text) == []


def test_a_queue_that_never_ends_is_said_in_valid_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--trace", str(TRACE), "--slo", "ttft=2s", "--engines", "2", "--speed", "20"]
    assert main([*argv, "--json"]) == 0
    text = capsys.readouterr().out
    assert "Infinity" not in text
    options = json.loads(text)["options"]
    assert any(one["predicted"]["ttft_s"] is None for one in options)
    assert main(argv) == 0
    assert "endless" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (["--trace", str(TRACE)], 2, "--slo"),
        (["--trace", str(TRACE), "--slo", "ttft=soon"], 2, "soon"),
        (["--trace", "absent.jsonl", "--slo", "ttft=2s"], 1, "absent.jsonl"),
        (["--trace", str(TRACE), "--slo", "ttft=2s", "--profile", "abacus"], 1, "abacus"),
    ],
)
def test_a_mistake_is_named(
    argv: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == status
    assert said in capsys.readouterr().err
