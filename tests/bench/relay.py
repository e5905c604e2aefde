#!/usr/bin/env python3
"""What it costs to pass a request and a token on: kvgate's two lanes, nginx and vllm-router side by
side.

`relay.py --json -` prints one JSON line; a table goes to stderr. In every round all proxies are up,
and each scenario runs on one after another, in an order that rotates from round to round; figures
are medians over the rounds. Cost is CPU time of the proxy's own processes, never wall time, so
threads do not flatter.

Scenarios: `small`, a fixed number of kept-alive connections that ask again at once
(per_request_us); `paced`, the same at a fixed rate, where each request also pays for a wake-up
(per_request_paced_us); `streams`, 200 streams with 20 ms between chunks: first a window in which
nothing but chunks passes (per_chunk_us), then short streams beside them for TTFT; `idle`, memory
per open stream that says nothing; `hold`, 2 000 streams at one chunk a second, kvgate only; `kv`,
chats of 2 kB to proxies that route by prompts, in front of engines that publish KV events
(per_request_kv_us): a run in which a proxy does not find what the engines hold is an error.
`--only kvgate,kvgate_realistic --scenarios small` tells what a file full of locations, maps and
limits costs beside the plain one; `--slices 15` with it, as the machine's speed differs more from
second to second than the two do.

Processes are not pinned unless `--pin` says so: each proxy then has one core, the load and the
engines the rest, and vllm-router runs one thread in place of one per core.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import evidence
import jsonline
import proc
import proxies
import report
from report import DIRECT, Run

HERE = Path(__file__).parent
LOAD_S = 180.0  # a scenario that takes longer is stuck
AGAINST = ("nginx", "vllm_router")
AGAINST_KV = ("vllm_router_kv_aware", "vllm_router_cache_aware")
PROMPTS = 1_000_000  # numbers of prompts set aside for each run with them
# scenario -> arguments of load.py, and those of --quick in their place
SCENARIOS: dict[str, tuple[str, str]] = {
    "idle": ("idle --streams 1000 --warm 1", "idle --streams 200 --warm 0.2"),
    "small": ("small --rate 0 --seconds 4", "small --rate 0 --seconds 1 --warm 0.3"),
    "paced": ("small --rate 1000 --seconds 4", "small --rate 1000 --seconds 1 --warm 0.3"),
    "streams": (
        "streams --seconds 4 --probes 200 --probe-seconds 5",
        "streams --seconds 1 --probes 200 --probe-seconds 1 --warm 0.3",
    ),
    "hold": (
        "streams --streams 2000 --interval 1000 --seconds 10",
        "streams --streams 2000 --interval 1000 --seconds 3",
    ),
    "kv": ("small --rate 0 --seconds 4", "small --rate 0 --seconds 1 --warm 0.3"),
}


class Bench:
    """The engines, the options, and the runs so far."""

    def __init__(self, args: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self.args = args
        self.folder = folder
        self.runs: list[Run] = []
        everywhere = os.sched_getaffinity(0)
        self.load_cores, self.proxy_cores = proc.cores() if args.pin else (everywhere, everywhere)
        os.sched_setaffinity(0, self.load_cores)  # inherited by the engines and the load generator
        self.conf = args.config.read_text() if args.config else proxies.KVGATE_CONF
        self.tokenizer = proxies.model_folder(folder) if args.kv_proxies else ""
        command = [sys.executable, str(HERE / "upstream.py"), "--ports", "2"]
        command += ["--tokenizer", self.tokenizer] if self.tokenizer else []
        engines = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        stack.callback(proxies.stop, engines)
        assert engines.stdout is not None
        told = json.loads(engines.stdout.readline())
        self.engines: tuple[int, int] = tuple(told["ports"])
        self.events = tuple((live, replayed) for live, replayed in told["events"])
        self.engines_pid = engines.pid

    def start(self, name: str, turn: int) -> proxies.Proxy:
        folder = self.folder / f"{turn}-{name}"
        folder.mkdir()
        site = proxies.Site(
            folder,
            proxies.free_port(),
            self.engines,
            kvgate_conf=self.conf,
            tokenizer=self.tokenizer,
            events=self.events,
            metrics_port=proxies.free_port(),
        )
        return proxies.start(name, site, self.proxy_cores)

    def load(self, turn: int, name: str, scenario: str, running: dict[str, proxies.Proxy]) -> None:
        """Run a scenario on one proxy, or on the engines themselves."""
        say(f"round {turn + 1}/{self.args.rounds}: {scenario} on {name}")
        if name == DIRECT:
            ports, pids = list(self.engines), [self.engines_pid]
        else:
            ports, pids = [running[name].port], running[name].pids()
        words = SCENARIOS[scenario][self.args.quick].split()
        where = ["--to", ",".join(map(str, ports)), "--pids", ",".join(map(str, pids))]
        log = running[name].log if name in running else "none"
        if scenario != "kv":
            found = self.command(f"{scenario} on {name}", [*words, *where], log)
        else:
            first = PROMPTS * len(self.runs)
            words += ["--prompts", str(first)]
            proxy = running[name]
            probe = evidence.Probe(proxy.port, proxy.metrics, self.engines, first)
            before = probe.begin()
            found = self.command(f"{scenario} on {name}", [*words, *where], log)
            found["found"] = shown = probe.end(before, found["replies"])
            if "void" in shown:
                found["errors"]["void"] = 1
                found["error_samples"].append(shown["void"])
        if "--streams" in words:
            found["wanted"] = int(words[words.index("--streams") + 1])
        self.runs.append(Run(turn, name, scenario, found))

    def command(self, what: str, words: list[str], log: Path | str) -> dict[str, Any]:
        command = [sys.executable, str(HERE / "load.py"), *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=LOAD_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{what}: load.py failed (log of the proxy: {log})")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def round(self, turn: int) -> None:
        args = self.args
        with self.started(args.proxies, turn) as running:
            for shift, scenario in enumerate(args.scenarios):
                if scenario == "kv" or (scenario == "hold" and turn):
                    continue
                order = list(args.proxies)
                if scenario == "hold":
                    order = [name for name in order if name in report.OURS]
                elif scenario in ("paced", "streams"):
                    order.append(DIRECT)
                for slice_ in range(args.slices):
                    first = (turn + shift + slice_) % max(len(order), 1)
                    for name in order[first:] + order[:first]:
                        self.load(turn, name, scenario, running)
        with self.started(args.kv_proxies, turn) as running:
            first = turn % max(len(running), 1)
            for name in args.kv_proxies[first:] + args.kv_proxies[:first]:
                self.load(turn, name, "kv", running)

    @contextmanager
    def started(self, names: list[str], turn: int) -> Iterator[dict[str, proxies.Proxy]]:
        with ExitStack() as stack:
            running: dict[str, proxies.Proxy] = {}
            for name in names:
                running[name] = self.start(name, turn)
                stack.callback(running[name].stop)
            yield running


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def busy_s() -> tuple[float, float]:
    """(CPU s that this machine was busy, CPU s stolen by its host) since it started."""
    ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, softirq, steal = ticks
    hertz = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / hertz, steal / hertz


def own_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model n")), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    cores = os.cpu_count()
    return {"cpu": model, "cores": cores, "memory_gib": memory, "kernel": platform.release()}


def versions(names: list[str]) -> dict[str, str]:
    found = {"python": platform.python_version(), "uvloop": version("uvloop")}
    if any(name.startswith("kvgate") for name in names):
        git = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
        command = [sys.executable, "-m", "gateway", "-v"]
        shown = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=proxies.ROOT
        )
        found["kvgate"] = f"{(shown.stdout + shown.stderr).strip().rpartition('/')[2]} {commit}"
    if "nginx" in names:
        binary = proxies.nginx_binary()
        shown = subprocess.run([binary, "-v"], capture_output=True, text=True, check=False)
        found["nginx"] = shown.stderr.strip().rpartition("/")[2]
    if any(name.startswith("vllm_router") for name in names):
        found["vllm_router"] = proxies.VLLM_ROUTER
    return found


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    jsonline.option(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--slices", type=int, default=1, help="so often, in turn, each scenario of a round"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round: does it work at all?"
    )
    parser.add_argument("--only", type=names, help="measure these proxies and no others")
    parser.add_argument("--against", type=names, default=list(AGAINST), help="beside our two lanes")
    parser.add_argument(
        "--against-kv", type=names, default=list(AGAINST_KV), help="the same, for `kv`"
    )
    parser.add_argument("--scenarios", type=names, default=list(SCENARIOS))
    parser.add_argument(
        "--config", type=Path, help="kvgate configuration; @PORT@ @A@ @B@ @DIR@ @EXPRESS@"
    )
    parser.add_argument("--extra", action="append", default=[], help="NAME=COMMAND: one more proxy")
    parser.add_argument(
        "--pin", action="store_true", help="one core for the proxy, the rest for the load"
    )
    args = parser.parse_args()
    extra = [proxies.add_command(text) for text in args.extra]
    args.proxies = (args.only or [*report.OURS, *args.against]) + extra
    args.kv_proxies = [*report.OURS_KV, *args.against_kv]
    if args.only:
        args.kv_proxies = [name for name in args.only if name in args.kv_proxies]
        args.proxies = [name for name in args.proxies if name not in args.kv_proxies]
    if "kv" not in args.scenarios:
        args.kv_proxies = []
    for kind, asked, known in (
        ("proxy", args.proxies + args.kv_proxies, proxies.COMMANDS),
        ("scenario", args.scenarios, SCENARIOS),
    ):
        for name in asked:
            if name not in known:
                parser.error(f'unknown {kind} "{name}" (there are: {", ".join(known)})')
    if args.quick:
        args.rounds = 1
    return args


def main() -> int:
    args = options()
    proc.raise_file_limit()
    about = {"machine": machine(), "versions": versions(args.proxies + args.kv_proxies)}
    began, (busy, stolen) = time.monotonic(), busy_s()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvgate-bench-")))
        bench = Bench(args, folder, stack)
        for turn in range(args.rounds):
            bench.round(turn)
    line = report.summary(bench.runs)
    seconds = (time.monotonic() - began) * (os.cpu_count() or 1)
    busy_now, stolen_now = busy_s()
    line["noise"]["others_cpu_share"] = round(max(0.0, busy_now - busy - own_s()) / seconds, 3)
    line["noise"]["stolen_cpu_share"] = round((stolen_now - stolen) / seconds, 3)
    line |= about | {"date": datetime.now(UTC).isoformat(timespec="seconds"), "pinned": args.pin}
    print(report.table(line), file=sys.stderr)
    print(f"noise: {line['noise']}", file=sys.stderr)
    jsonline.write(line, args.json)
    return 1 if line["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
