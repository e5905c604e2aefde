"""Simulated engines behind a gateway, and what the gateway noted of the requests of one run.

The other server for `load_tools.py`, beside `answers.py`: here answers take as long as queues and
batches of engines make them, which no two runs have alike, and it is the gateway's own log that
says how long each took.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median

from proxies import ROOT, free_port, stop
from rig import get  # it makes the next one known

from engines.sim.process import SimEngine  # isort: skip

ENGINES = 2
# A millisecond of the engines takes so many here: what tools add to a first token is not seen.
PACE = 10
READY_S = 30.0
CONF = """
worker_processes 1; pid @DIR@/kvgate.pid; error_log @DIR@/error.log notice;
http {
    log_format times escape=json '{"ttft":"$ttft","tpot":"$tpot","e2el":"$request_time"}';
    upstream sim { model sim; least_conn; @SERVERS@ }
    server {
        listen 127.0.0.1:@PORT@ backlog=4096;
        location /v1/ { proxy_pass http://sim; access_log @DIR@/times.log times; }
    }
}
"""
NAMES = {"ttft_sent_s": "ttft", "tpot_s": "tpot", "e2el_sent_s": "e2el"}


class Simulated:
    """Like `answers.Answers`."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Simulated:
        self._folder = Path(tempfile.mkdtemp(prefix="kvgate-tools-"))
        self._stack.callback(shutil.rmtree, self._folder)
        engines = [
            self._stack.enter_context(
                SimEngine("sim", "--profile", "h100-8b-tp1", "--time-scale", str(PACE))
            )
            for _ in range(ENGINES)
        ]
        port = free_port()
        text = CONF.replace("@DIR@", str(self._folder)).replace("@PORT@", str(port))
        text = text.replace("@SERVERS@", " ".join(f"server {one.address};" for one in engines))
        conf = self._folder / "kvgate.conf"
        conf.write_text(text)
        command = [sys.executable, "-m", "gateway", "-c", str(conf)]
        gateway = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        self._stack.callback(stop, gateway)
        self.url = f"http://127.0.0.1:{port}"
        self._wait(port)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                get(port, "/v1/models")
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def served(self, requests: int) -> dict[str, dict[str, float]]:
        """In ms, of the last `requests` answers, by the names of `kvgate load`."""
        deadline = time.monotonic() + READY_S
        while len(lines := self._lines()) < requests:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(lines)} answers, not {requests}")
            time.sleep(0.05)
        last = lines[-requests:]
        found = {}
        for ours, name in NAMES.items():
            of = [float(line[name]) * 1e3 for line in last]
            found[ours] = {"mean": fmean(of), "p50": median(of)}
        return found

    def _lines(self) -> list[dict[str, str]]:
        path = self._folder / "times.log"
        text = path.read_text() if path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if line["ttft"] != "-" and line["ttft"]]
