"""A prefill and a decode engine that hand KV blocks over, and a single one to compare them with.

Stock vLLM with NIXL over UCX on loopback and a tiny model with random weights, so that an answer
from wrong KV blocks is a wrong answer. E2E_ENGINE=sim: simulated engines, pull mode only.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import httpx
from e2e import fleet
from e2e.fleet import Engine
from harness import waiting
from harness.gateway import ROOT, free_ports

from engines.vllm.launch import ChildServer
from engines.vllm.spec import Command, Cpu, EngineSpec, Role, command
from engines.vllm.transfer import Nixl, transfer_config

MODEL = "tiny"
WEIGHTS = fleet.CACHE / "tiny-llama"
BLOCK = 32  # tokens
PREFILL_LEN, DECODE_LEN = 4096, 3584  # tokens of context: some requests fit only the one
KV_TOKEN_BYTES = 1024  # of the tiny model
KV_BYTES = 16 << 20
LEASE_S = 12
SOURCES = "vllm:prompt_tokens_by_source_total"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"


@dataclass(frozen=True, slots=True)
class Setup:
    """How the engines of one pair are to be."""

    mode: Literal["pull", "push"] = "pull"
    lease_s: int = LEASE_S
    on_load_failure: Literal["fail", "recompute"] = "recompute"
    kv_bytes: int = KV_BYTES
    engine_id: str = ""  # of the prefill engine


@dataclass(slots=True)
class Pair:
    prefill: Engine
    decode: Engine
    single: Engine

    @property
    def all(self) -> tuple[Engine, ...]:
        return (self.prefill, self.decode, self.single)

    def wait_idle(self, timeout_s: float = 60.0) -> None:
        """Until neither engine works, and no prefilled block waits for a reader."""
        for engine in (self.prefill, self.decode):
            waiting.until(
                lambda engine=engine: engine.running() == 0 and usage(engine) == 0,
                f"{engine.address} to be idle with no block in use",
                timeout_s,
            )


def usage(engine: Engine) -> float:
    """The share of KV blocks that requests hold, or leases; cached ones nobody holds are free."""
    return engine.counter("vllm:kv_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompt tokens of an engine so far, by where their KV came from."""

    moved: int  # from another engine
    computed: int
    cached: int

    def __sub__(self, before: Prompts) -> Prompts:
        return Prompts(
            self.moved - before.moved,
            self.computed - before.computed,
            self.cached - before.cached,
        )


def prompts(engine: Engine) -> Prompts:
    return Prompts(*(
        int(engine.counter(SOURCES, source=source))
        for source in ("external_kv_transfer", "local_compute", "local_cache_hit")
    ))  # fmt: skip


def engine(role: Role, setup: Setup | None, folder: Path) -> Engine:
    """An engine that is not started yet. `setup` None: one without a KV connector."""
    port, side = free_ports(2)
    nixl = None
    if setup is not None:
        nixl = Nixl(
            mode=setup.mode, port=side, lease_s=setup.lease_s, buffer_device="cpu",
            on_load_failure=setup.on_load_failure, ucx_tls="tcp,sm,self", ucx_devices="lo",
            engine_id=setup.engine_id if role == "prefill" else "",
        )  # fmt: skip
    spec = EngineSpec(
        model=str(WEIGHTS),
        served_names=(MODEL,),
        port=port,
        role=role,
        block_size=BLOCK,
        max_model_len=DECODE_LEN if role == "decode" else PREFILL_LEN,
        dtype="float32",
        nixl=nixl,
        cpu=Cpu(kv_bytes=setup.kv_bytes if setup else KV_BYTES),
        offline=True,
        extra=("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        executable=str(fleet.VLLM),
    )
    built = _sim(spec) if fleet.KIND == "sim" else _vllm(spec)
    log = folder / f"{role}-{port}.log"
    return Engine(port, lambda: ChildServer.start(built, f"http://127.0.0.1:{port}", log))


def pair(setup: Setup, single: Engine, folder: Path) -> Pair:
    """Engines that are not started yet, and one to compare them with."""
    return Pair(engine("prefill", setup, folder), engine("decode", setup, folder), single)


def _vllm(spec: EngineSpec) -> Command:
    assert fleet.VLLM.exists() and WEIGHTS.exists(), "run tests/e2e/env.sh first (make e2e does)"
    built = command(spec)
    # Resetting the prefix cache is a development endpoint.
    return replace(built, environ=(*built.environ, ("VLLM_SERVER_DEV_MODE", "1")))


def _sim(spec: EngineSpec) -> Command:
    argv = [sys.executable, "-m", "engines.sim", "--port", str(spec.port)]
    argv += ["--served-model-name", *spec.served_names, "--block-size", str(spec.block_size)]
    argv += ["--max-model-len", str(spec.max_model_len), "--kv-tokens", "16384"]
    argv += ["--enable-prompt-tokens-details", "--profile", "fixed:5"]  # ms per step
    side = ""
    if spec.nixl is not None:
        config = json.dumps(transfer_config(spec.role, spec.nixl, None))
        argv += ["--kv-transfer-config", config, "--link-gb-s", "1"]
        side = str(spec.nixl.port)
    return Command(
        tuple(argv), (("PYTHONPATH", str(ROOT)), ("VLLM_NIXL_SIDE_CHANNEL_PORT", side or "0"))
    )


@contextmanager
def running(engines: Sequence[Engine]) -> Iterator[None]:
    """Starts engines side by side, and ends them whatever happened to them."""
    try:
        for each in engines:
            each.launch()
        for each in engines:
            each.ready_s = each.server.wait_ready()
            unpin(each)
            print(f"e2e: {each.address} ready after {each.ready_s:.0f} s", file=sys.stderr)
        yield
    finally:
        for each in engines:
            if hasattr(each, "server"):
                each.server.stop()


def unpin(engine: Engine) -> None:
    """Gives all its threads all cores. vLLM on the CPU pins whoever has a NIXL connector to the
    last core (0.32, nixl/base_worker.py), where NIXL polls without a pause: two engines on one
    core stood still for up to 90 s at a time, so that leases ended and requests were not read."""
    cores = os.sched_getaffinity(0)
    for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.getpgid(int(task.parent.parent.name)) == engine.server.pid:
                os.sched_setaffinity(int(task.name), cores)


def revive(engine: Engine) -> None:
    """Starts a killed engine again on its ports."""
    if not engine.server.alive:
        engine.launch()
        engine.server.wait_ready()
        unpin(engine)


def freeze(engine: Engine) -> None:
    """Stops all its processes where they are; its sockets still take what is sent."""
    os.killpg(engine.server.pid, signal.SIGSTOP)


def thaw(engine: Engine) -> None:
    if engine.server.alive:
        os.killpg(engine.server.pid, signal.SIGCONT)


def post(engine: Engine, path: str, body: dict[str, object]) -> httpx.Response:
    return httpx.post(engine.base_url + path, json=body, timeout=60)


def overwrite(engine: Engine) -> None:
    """Other prompts take every block of it that is free, twice over."""
    for number in range(2 * KV_BYTES // KV_TOKEN_BYTES // PREFILL_LEN):
        drawn = random.Random(f"{engine.port} {number} {time.monotonic()}")
        prompt = [drawn.randrange(100, 40_000) for _ in range(PREFILL_LEN - 100)]
        body: dict[str, object] = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        assert post(engine, "/v1/completions", body).status_code == 200
