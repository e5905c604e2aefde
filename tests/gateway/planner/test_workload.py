"""Reports of recorded traffic: figures that are known, and what is said of them."""

from __future__ import annotations

import json
import math
import os
import random
import re
from pathlib import Path

import pytest

from gateway.cli.workload import main
from gateway.conf.directives import TABLE
from gateway.planner.advice import __file__ as advice_file
from gateway.planner.advice import advice
from gateway.planner.arrivals import arrivals, dispersion, gap_cv
from gateway.planner.lengths import lengths
from gateway.planner.sharing import clients, tiers, turns
from gateway.planner.trace_files import BadTrace, Rows, rows, write_mooncake
from gateway.planner.trace_formats import Row, Told
from gateway.planner.workload import Setting, Workload, analyse

TRACE = Path(__file__).parents[2] / "vectors" / "mooncake_conversation_400.jsonl"
FOLDER = Path(os.environ.get("KVGATE_TRACES", Path(__file__).parents[4] / "traces"))


def report(found: Rows, *sizes: tuple[str, int]) -> Workload:
    return analyse(found, Setting(sizes))


def made(*of: Row, block: int = 16) -> Rows:
    return Rows(of, block, "made", "made", 0.0, 0)


@pytest.mark.parametrize(
    ("name", "rate", "prompt", "answer", "dispersed", "endless"),
    [
        ("conversation", 3.40, (12_035, 6_909, 85_401), (343, 350, 1_120), 7.9, 0.374),
        ("synthetic", 3.91, (15_325, 11_587, 66_458), (149, 69, 769), 1.09, 0.651),
    ],
)
def test_public_traces_have_their_figures(
    name: str,
    rate: float,
    prompt: tuple[int, ...],
    answer: tuple[int, ...],
    dispersed: float,
    endless: float,
) -> None:
    file = FOLDER / f"mooncake_{name}.jsonl"
    if not file.exists():
        pytest.skip(f"{file.name} is not here: KVGATE_TRACES names its folder")
    found = report(rows(file))
    assert found.arrivals.rate == pytest.approx(rate, abs=0.01)
    for got, wanted in ((found.input, prompt), (found.output, answer)):
        assert got.mean == pytest.approx(wanted[0], abs=0.6)
        assert (got.at["p50"], got.at["p99"]) == pytest.approx(wanted[1:], rel=2e-3)
    assert found.arrivals.raw.by_scale["1s"] == pytest.approx(dispersed, abs=0.05)
    assert found.prefixes is not None
    assert found.prefixes.endless_hit == pytest.approx(endless, abs=0.001)


@pytest.mark.parametrize(
    ("name", "hits"),
    [
        ("conversation", {1: 0.054, 2: 0.087, 4: 0.178, 8: 0.266, 16: 0.336, 32: 0.366}),
        ("synthetic", {1: 0.145, 2: 0.233, 4: 0.375, 8: 0.536, 16: 0.638}),
    ],
)
def test_caches_of_any_size_hit_as_a_prototype_found(name: str, hits: dict[int, float]) -> None:
    file = FOLDER / f"mooncake_{name}.jsonl"
    if not file.exists():
        pytest.skip(f"{file.name} is not here: KVGATE_TRACES names its folder")
    shared = report(rows(file)).prefixes
    assert shared is not None
    for millions, hit in hits.items():
        assert shared.curve[millions * 1_000_000] == pytest.approx(hit, abs=0.006)


def test_random_arrivals_have_a_dispersion_of_one() -> None:
    chance, at, times = random.Random(1), 0.0, []
    for _ in range(20_000):
        at += chance.expovariate(5.0)
        times.append(at)
    assert dispersion(times, 1.0) == pytest.approx(1.0, abs=0.1)
    assert gap_cv(times) == pytest.approx(1.0, abs=0.05)
    assert arrivals(times, 0.0).drift < 0.05


def test_ticks_and_bursts_are_told_apart() -> None:
    ticked = [3.0 * (n // 10) for n in range(3000)]
    found = arrivals(ticked, 3.0)
    raw, spread = found.raw.by_scale["1s"], found.spread.by_scale["1s"]
    assert raw is not None and spread is not None and raw > 5 > 1.5 > spread


def test_a_rate_that_doubles_drifts() -> None:
    times = [n / 2 for n in range(1000)] + [500 + n / 4 for n in range(2000)]
    found = arrivals(times, 0.0)
    assert found.drift == pytest.approx(1 / 3, abs=0.05)
    assert found.peak_rate == pytest.approx(4, rel=0.05)


def test_laws_are_found_again() -> None:
    chance = random.Random(2)
    drawn = {
        "lognormal": [1 + int(chance.lognormvariate(6, 1)) for _ in range(4000)],
        "exponential": [1 + int(chance.expovariate(1 / 900)) for _ in range(4000)],
        "weibull": [1 + int(chance.weibullvariate(900, 2.5)) for _ in range(4000)],
    }
    for name, values in drawn.items():
        laws = {law.name: law for law in lengths(values).laws}
        assert laws[name].distance < 0.03, name
    assert lengths(drawn["lognormal"]).laws[0].name == "lognormal"
    shape = next(law for law in lengths(drawn["weibull"]).laws if law.name == "weibull")
    assert shape.parameters["shape"] == pytest.approx(2.5, rel=0.05)


def test_lengths_that_never_vary_have_a_report() -> None:
    found = lengths([64] * 100)
    assert (found.cv, found.at["p99"]) == (0.0, 64) and found.laws[0].name == "exponential"


def test_clients_are_counted_by_what_they_send() -> None:
    many = [Row(n, 16, 1, client="a") for n in range(90)]
    few = [Row(100 + n, 16, 1, client=f"b{n}") for n in range(10)]
    found = clients([*many, *few])
    assert found is not None
    assert (found.count, found.for_90, found.top_share) == (11, 1, 0.9)
    assert clients([Row(0, 16, 1)]) is None


def test_turns_are_told_by_sessions_or_by_prefixes() -> None:
    talk = [Row(0, 32, 1, [1, 2]), Row(1, 48, 1, [1, 2, 3]), Row(2, 64, 1, [1, 2, 3, 4])]
    # Another that shares no more than its beginning.
    other = Row(3, 32, 1, [1, 9])
    found = turns([*talk, other], 16)
    assert found is not None
    assert (found.source, found.sessions, found.deepest) == ("prefixes", 2, 3)
    named = [Row(n, 16, 1, session="s" if n else "t") for n in range(4)]
    found = turns(named, 16)
    assert found is not None
    assert (found.source, found.sessions, found.deepest, found.share) == ("sessions", 2, 3, 0.5)


def test_tiers_add_up() -> None:
    found = rows(TRACE)
    trace = found.packed().trace
    got = tiers([("device", 200_000), ("host", 800_000), ("disk", 1 << 40)], trace)
    assert [tier.name for tier in got] == ["device", "host", "disk"]
    assert sum(tier.gain for tier in got) == pytest.approx(got[-1].hit)
    assert got[-1].hit == pytest.approx(trace.reusable_tokens() / trace.input_tokens)
    assert got[0].hit <= got[1].hit <= got[2].hit


def test_advice_says_directives_as_they_are_written() -> None:
    """All of its text, not only what a trace happens to bring up."""
    said = re.findall(r"`([a-z_]+)([^`]*)`", Path(advice_file).read_text())
    named = [(name, rest.strip()) for name, rest in said if name != "kvgate"]
    assert len(named) >= 5
    for name, rest in named:
        found = TABLE.named(name)
        assert found, f"there is no directive `{name}`"
        assert any(f"{name} {rest}".strip() in one.example for one in found), (name, rest)


def test_advice_names_its_figures() -> None:
    found = report(rows(TRACE), ("device", 3_688_000), ("host", 10_000_000))
    said = advice(found)
    assert found.prefixes is not None
    assert any(f"{found.prefixes.endless_hit:.1%}" in sentence for sentence in said)
    assert all(any(letter.isdigit() for letter in sentence) for sentence in said)


def test_a_trace_without_prefixes_says_so() -> None:
    said = advice(report(made(*(Row(n, 100, 10) for n in range(50)))))
    assert "no prefixes" in said[0]
    assert math.isfinite(report(made(Row(0, 5, 1))).arrivals.rate)


def test_kvgates_own_traces_are_read(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    lines = [
        {"kvgate_trace": 1, "block": 64},
        {"timestamp": 5, "input_length": 100, "output_length": 3, "hash_ids": [7],
         "client": "c1", "session": "s1"},
        {"timestamp": 9, "input_length": 128, "output_length": 3, "hash_ids": [7, 8]},
        {"kvgate_trace": 1, "block": 64},
    ]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, lines)))
    found = rows(file)
    assert (found.format, found.block, len(found.rows)) == ("kvgate", 64, 2)
    assert (found.rows[0].client, found.rows[0].session) == ("c1", "s1")
    assert found.packed().trace.reusable_tokens() == 64
    file.write_text(json.dumps({"kvgate_trace": 2, "block": 64}) + "\n")
    with pytest.raises(BadTrace, match="version 2"):
        rows(file)


def test_timed_traces_of_other_tools_are_read(tmp_path: Path) -> None:
    file = tmp_path / "timed.jsonl"
    line = {"timestamp": 2, "input_length": 40, "output_length": 3, "hash_ids": [1, 2, 3]}
    file.write_text("\n".join(json.dumps(line | {"timestamp": at}) for at in (2, 5)))
    found = rows(file, told=Told(unit_s=1.0))
    assert (found.format, found.block, found.rows[1].at_s) == ("timed", 16, 3.0)
    turns_of = [
        {"timestamp": 0, "session_id": "a", "input_length": 10, "output_length": 1},
        {"delay": 500, "session_id": "a", "input_length": 20, "output_length": 1},
    ]
    file.write_text("\n".join(map(json.dumps, turns_of)))
    found = rows(file)
    assert (found.format, [row.at_s for row in found.rows]) == ("aiperf", [0.0, 0.5])


def test_a_pool_of_servegen_makes_its_rate_and_lengths(tmp_path: Path) -> None:
    for number, (rate, cv, law) in enumerate([(2.0, 1.0, ""), (1.0, 2.0, "Gamma")]):
        windows = [f"{t},{rate},{cv},{law},{1 / cv**2},1" for t in (0, 600, 1200)]
        (tmp_path / f"chunk-{number}-trace.csv").write_text("\n".join(windows))
        spans = {"0": {"input_tokens": "{100: 0.5, 300: 0.5}", "output_tokens": "{10: 1.0}"}}
        (tmp_path / f"chunk-{number}-dataset.json").write_text(json.dumps(spans))
    found = rows(tmp_path)
    assert len(found.rows) / 1800 == pytest.approx(3.0, rel=0.1)
    assert sum(row.input for row in found.rows) / len(found.rows) == pytest.approx(200, rel=0.05)
    who = clients(found.rows)
    assert who is not None and who.top_share == pytest.approx(2 / 3, abs=0.06)
    assert rows(tmp_path).rows == found.rows
    (tmp_path / "chunk-1-dataset.json").write_text("{}")
    with pytest.raises(BadTrace, match="chunk-1"):
        rows(tmp_path)


def test_mooncakes_form_is_written_and_read_again(tmp_path: Path) -> None:
    found = rows(TRACE)
    write_mooncake(found, tmp_path / "again.jsonl")
    assert [row.blocks for row in rows(tmp_path / "again.jsonl").rows] == [
        row.blocks for row in found.rows
    ]
    # Four blocks of 256 make two of 512; a rest is one more.
    small = made(Row(0, 1100, 1, [1, 2, 3, 4, 5]), Row(1, 700, 1, [1, 2, 9]), block=256)
    write_mooncake(small, tmp_path / "small.jsonl")
    again = rows(tmp_path / "small.jsonl")
    assert [row.blocks for row in again.rows] == [[2, 4, 5], [2, 9]]
    assert again.packed().trace.reusable_tokens() == 512
    with pytest.raises(ValueError, match="blocks of 48"):
        write_mooncake(made(Row(0, 48, 1, [1]), block=48), tmp_path / "odd.jsonl")


def test_the_command_writes_text_json_a_page_and_mooncake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main([str(TRACE), "--host-gib", "512", "--json", "--html", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["arrivals"]["requests"] == 400 and found["tiers"][1]["name"] == "host"
    assert found["advice"] and "1000000" in found["prefixes"]["curve"]
    text = page.read_text()
    assert "new uPlot" in text and "src=" not in text and "href=" not in text
    assert main([str(TRACE)]) == 0
    assert "index of dispersion" in capsys.readouterr().out
    assert main([str(TRACE), "--mooncake", str(tmp_path / "m.jsonl")]) == 0
    assert len(rows(tmp_path / "m.jsonl").rows) == 400


def test_a_name_in_a_page_is_text(tmp_path: Path) -> None:
    file = tmp_path / "<script>alert(1)<.jsonl"
    file.write_text(TRACE.read_text())
    assert main([str(file), "--html", str(tmp_path / "p.html")]) == 0
    assert "<script>alert" not in (tmp_path / "p.html").read_text()


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        ([], 2, "FILE"),
        (["absent.jsonl"], 1, "absent.jsonl"),
        ([str(TRACE), "--profile", "abacus"], 1, "abacus"),
        ([str(TRACE), "--time-unit", "weeks"], 2, "weeks"),
    ],
)
def test_a_mistake_is_named(
    argv: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == status
    assert said in capsys.readouterr().err
