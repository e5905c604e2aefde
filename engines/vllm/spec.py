"""What a vLLM server should be, and the command line and environment that make it so.

`command(spec)` is pure: no files, no clock, no vLLM import; tests/golden/argv holds what it
writes. A spec that vLLM would accept and then die of, or run wrongly with, is refused (check.py).
Secrets go through the environment, never through argv, which every user of the machine can read.
Flags and their traps are those of vLLM 0.32.0.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import Literal

from engines.vllm.check import SpecError, problems
from engines.vllm.transfer import Nixl, Offload, transfer_config

Role = Literal["prefill", "decode", "both"]

SECRETS = frozenset({"VLLM_API_KEY"})


@dataclass(frozen=True, slots=True)
class KvEvents:
    """Where KV-cache events are published (ZMQ). Rank r of a data-parallel engine: port + r."""

    endpoint: str = "tcp://*:5557"
    replay: str = "tcp://*:5657"  # "" = no replay socket
    topic: str = ""
    buffer_steps: int = 10_000  # batches that the replay socket can give again


@dataclass(frozen=True, slots=True)
class Cpu:
    """vLLM's CPU platform. `kv_bytes` is the whole KV cache in host memory, in bytes."""

    kv_bytes: int = 256 << 20
    omp_threads: int = 1
    omp_bind: str = "nobind"
    eager: bool = True  # no compilation: starts in half the time


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One `vllm serve`. Only one default differs from vLLM's own: cached tokens are reported."""

    model: str  # hub name or folder
    served_names: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    role: Role = "both"
    block_size: int = 0  # tokens; 0 = vLLM's default
    max_model_len: int = 0  # tokens; 0 = the model's own
    dtype: str = ""
    tensor_parallel: int = 1
    data_parallel: int = 1
    events: KvEvents | None = None
    nixl: Nixl | None = None
    offload: Offload | None = None
    cpu: Cpu | None = None
    api_key: str = field(default="", repr=False)
    prompt_tokens_details: bool = True  # usage.prompt_tokens_details.cached_tokens
    offline: bool = False  # never ask the model hub
    extra: tuple[str, ...] = ()  # further `vllm serve` arguments, as they are
    executable: str = "vllm"


@dataclass(frozen=True, slots=True)
class Command:
    """An argv and the variables it needs on top of the caller's environment, in a fixed order."""

    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]

    def shell(self, secret_file: str = "") -> str:
        """One line for a POSIX shell. A secret is read from its file, or is a reference to its own
        variable.
        """
        source = f"$(cat {shlex.quote(secret_file)})" if secret_file else ""
        pairs = [
            f'{name}="{source or "$" + name}"'
            if name in SECRETS
            else f"{name}={shlex.quote(value)}"
            for name, value in self.environ
        ]
        return " ".join([*(["env", *pairs] if pairs else ()), shlex.join(self.argv)])


def command(spec: EngineSpec) -> Command:
    """The `vllm serve` command of a spec.

    Raises:
        SpecError: the spec would not make a working engine.
    """
    found = problems(spec)
    if found:
        raise SpecError(found)
    argv = [spec.executable, "serve", spec.model, "--host", spec.host, "--port", str(spec.port)]
    if spec.served_names:
        argv += ["--served-model-name", *spec.served_names]
    for flag, value in (
        ("--block-size", spec.block_size),
        ("--max-model-len", spec.max_model_len),
        ("--dtype", spec.dtype),
    ):
        if value:
            argv += [flag, str(value)]
    for flag, count in (
        ("--tensor-parallel-size", spec.tensor_parallel),
        ("--data-parallel-size", spec.data_parallel),
    ):
        if count > 1:
            argv += [flag, str(count)]
    if spec.prompt_tokens_details:
        argv.append("--enable-prompt-tokens-details")
    argv += _cpu_flags(spec)
    if spec.events is not None:
        argv += ["--kv-events-config", _json(_events_config(spec.events))]
    transfer = transfer_config(spec.role, spec.nixl, spec.offload)
    if transfer is not None:
        argv += ["--kv-transfer-config", _json(transfer)]
    return Command((*argv, *spec.extra), tuple(_environ(spec).items()))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _single_process(spec: EngineSpec) -> bool:
    return spec.cpu is not None and spec.tensor_parallel == spec.data_parallel == 1


def _cpu_flags(spec: EngineSpec) -> list[str]:
    if spec.cpu is None:
        return []
    flags = ["--kv-cache-memory-bytes", str(spec.cpu.kv_bytes)]
    if spec.cpu.eager:
        flags.append("--enforce-eager")
    if _single_process(spec):
        # Worker inside the engine core: one process, and a third of the start-up time, less.
        flags += ["--distributed-executor-backend", "uni"]
    return flags


def _events_config(events: KvEvents) -> dict[str, object]:
    config: dict[str, object] = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": events.endpoint,
    }
    if events.replay:
        config["replay_endpoint"] = events.replay
        config["buffer_steps"] = events.buffer_steps
    if events.topic:
        config["topic"] = events.topic
    return config


def _environ(spec: EngineSpec) -> dict[str, str]:
    environ = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if spec.offline:
        environ["HF_HUB_OFFLINE"] = "1"
    if spec.cpu is not None:
        environ["OMP_NUM_THREADS"] = str(spec.cpu.omp_threads)
        environ["VLLM_CPU_OMP_THREADS_BIND"] = spec.cpu.omp_bind
    if _single_process(spec):
        # Without it vLLM silently takes the mp executor back (platforms/cpu.py).
        environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if spec.nixl is not None:
        environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = spec.nixl.host
        environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(spec.nixl.port)
        if spec.nixl.ucx_tls:
            environ["UCX_TLS"] = spec.nixl.ucx_tls
        if spec.nixl.ucx_devices:
            environ["UCX_NET_DEVICES"] = spec.nixl.ucx_devices
    if spec.api_key:
        environ["VLLM_API_KEY"] = spec.api_key
    return environ
