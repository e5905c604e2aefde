"""Simulated engines with a gateway in front, as processes: what `loopback.py` sends its calls to.

Engines run on a clock of their own: a millisecond of the step-time model takes `pace` real ones,
and the gateway is told so, by its `profile` and `slo`. Every run has fresh engines, with nothing in
their caches, and a fresh gateway.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from proxies import free_port, stop
from scaled import BLOCK, ROOT, Machine  # it makes the next two known

from harness import model_folder  # isort: skip
from engines.sim.process import SimEngine  # isort: skip

MODEL = "bench"
READY_S = 60.0
CONTEXT = 8192  # tokens; the longest prompt of the trace has 4 000 of ours
SEQS = 1024
CONF = """
worker_processes 1; pid @DIR@/kvgate.pid; error_log @DIR@/error.log notice;
http {
    access_log off;
    upstream bench {
        @SERVERS@ keepalive 256; block_size @BLOCK@; health_check interval=5s;
        @BALANCE@
    }
    server {
        listen 127.0.0.1:@PORT@ backlog=4096;
        location /v1/ {
            proxy_pass http://bench; proxy_read_timeout 600s; expose_receipt on; @LOCATION@
        }
        location = /metrics { metrics; }
    }
    server { listen unix:@DIR@/admin.sock; location / { admin; } }
}
"""
KV_AWARE = (
    "kv_aware; tokenizer {folder}; profile {profile} {constants} chunk={chunk}; "
    "kv_capacity {capacity};{slo}"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to build. `pace`: real seconds for one of the engines'; SLO in seconds of theirs, 0 =
    none.
    """

    engines: int
    machine: Machine
    pace: float
    ttft_s: float
    tpot_s: float

    def engine(self, folder: Path) -> list[object]:
        """Arguments of a simulated engine."""
        machine = self.machine
        constants = ",".join(f"{name}={v:.6g}" for name, v in machine.constants().items())
        events = {"enable_kv_cache_events": True, "endpoint": "tcp://*:0",
                  "replay_endpoint": "tcp://*:0"}  # fmt: skip
        return [
            MODEL, "--tokenizer", folder, "--enable-prompt-tokens-details",
            "--profile", f"{machine.profile},{constants}", "--time-scale", self.pace,
            "--block-size", BLOCK, "--kv-tokens", machine.capacity, "--max-model-len", CONTEXT,
            "--max-num-batched-tokens", machine.chunk_tokens, "--max-num-seqs", SEQS,
            "--kv-events-config", json.dumps(events),
        ]  # fmt: skip

    def kv_aware(self, folder: Path) -> str:
        """Directives of an upstream that knows what these engines are."""
        machine = self.machine
        constants = " ".join(f"{k}={v:.6g}" for k, v in machine.constants(self.pace).items())
        slo = f" slo ttft={self.ttft_s * self.pace * 1e3:.0f}ms" if self.ttft_s else ""
        slo += f" tpot={self.tpot_s * self.pace * 1e3:.0f}ms;" if self.tpot_s else ";" * bool(slo)
        return KV_AWARE.format(
            folder=folder,
            profile=machine.profile,
            constants=constants,
            chunk=machine.chunk_tokens,
            capacity=machine.capacity,
            slo=slo,
        )


@dataclass(slots=True)
class Rig:
    port: int
    engines: list[SimEngine]
    processes: list[int]

    def late_s(self) -> float:
        """What engines did not keep up with their own clock, in sum."""
        return sum(float(engine.state()["late_s"]) for engine in self.engines)

    def trust(self) -> dict[str, int]:
        """Engines by trust state; {} where the policy follows none."""
        found: dict[str, int] = {}
        for line in get(self.port, "/metrics").decode().splitlines():
            if line.startswith("kvgate_engine_trust{") and line.endswith(" 1.0"):
                state = line.partition('state="')[2].partition('"')[0]
                found[state] = found.get(state, 0) + 1
        return found

    def wait_trust(self, state: str) -> None:
        """Until all engines are in that state. RuntimeError when that takes too long."""
        deadline = time.monotonic() + READY_S
        while (found := self.trust()) != {state: len(self.engines)}:
            if time.monotonic() > deadline:
                raise RuntimeError(f"engines are not all {state} after {READY_S:g} s: {found}")
            time.sleep(0.05)


def get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read()
        if reply.status != 200:
            raise OSError(f"{path}: {reply.status} {body[:200]!r}")
        return body
    finally:
        connection.close()


def model(folder: Path) -> Path:
    """A small model's files, for engines and gateway."""
    return model_folder.write(folder / "model")


@contextmanager
def built(plan: Plan, balance: str, folder: Path, location: str = "") -> Iterator[Rig]:
    """Engines and a gateway that balances by these directives, with more of them in its location;
    `folder` must exist, and holds the `model`.
    """
    with ExitStack() as stack:
        engines = [SimEngine(*plan.engine(folder / "model")) for _ in range(plan.engines)]
        for engine in engines:
            stack.callback(engine.stop)
            engine.launch()
        for engine in engines:
            engine.wait_ready()
        port = free_port()
        values = {
            "DIR": str(folder),
            "SERVERS": " ".join(f"server {engine.address};" for engine in engines),
            "BLOCK": str(BLOCK),
            "BALANCE": balance,
            "PORT": str(port),
            "LOCATION": location,
        }
        text = CONF
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        conf = folder / "kvgate.conf"
        conf.write_text(text)
        command = [sys.executable, "-m", "gateway", "-c", str(conf)]
        gateway = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        stack.callback(stop, gateway)
        deadline = time.monotonic() + READY_S
        while True:
            try:
                get(port, "/v1/models")
                break
            except (OSError, http.client.HTTPException):
                if gateway.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no gateway: see {folder}/error.log") from None
                time.sleep(0.05)
        pids = [engine.pid for engine in engines if engine.pid is not None]
        yield Rig(port, engines, [*pids, gateway.pid])
