"""What is wrong with an EngineSpec, said before vLLM is started with it.

Pure. Each problem says where, what, the value and a hint. Most of these vLLM itself accepts, and
then dies of minutes later, or runs wrongly with.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engines.vllm.spec import EngineSpec

CPU_BLOCK_MULTIPLE = 32  # 16 passes vLLM's checks with a warning, then the worker dies
_OURS = re.compile(
    r"--(model|host|port|uds|served-model-name|api-key|block-size|max-model-len|dtype"
    r"|kv-events-config"
    r"|kv-transfer-config|kv-cache-memory-bytes|tensor-parallel-size|data-parallel-size"
    r"|distributed-executor-backend|enable-prompt-tokens-details)(=|$)"
)


@dataclass(frozen=True, slots=True)
class Problem:
    where: str
    what: str
    value: str
    hint: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}, got `{self.value}`\nhint: {self.hint}"


class SpecError(ValueError):
    """A spec that would not make a working engine; `problems` has every reason found."""

    def __init__(self, found: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in found))
        self.problems = found


def problems(spec: EngineSpec) -> tuple[Problem, ...]:
    """Everything that is wrong with a spec; empty = fine. `where` is the command line's word."""
    return tuple([*_field_problems(spec), *_kv_problems(spec), *_port_problems(spec)])


def port_of(endpoint: str) -> int | None:
    """The TCP port of a ZMQ endpoint; None for ipc and for a port that the system chooses."""
    match = re.fullmatch(r"tcp://.+:(\d+)", endpoint)
    return int(match[1]) or None if match else None


def _field_problems(spec: EngineSpec) -> list[Problem]:
    found = []
    if not spec.model or spec.model.startswith("-"):
        found.append(Problem("MODEL", "must be a hub name or a folder", spec.model, "put it first"))
    if spec.role not in ("prefill", "decode", "both"):
        found.append(
            Problem("--role", "is not a role", spec.role, "prefill, decode or both (the default)")
        )
    if not 0 < spec.port < 65536:
        found.append(
            Problem("--port", "must be 1 to 65535", str(spec.port), "vLLM's usual is 8000")
        )
    for where, count in (("--tp", spec.tensor_parallel), ("--dp", spec.data_parallel)):
        if count < 1:
            found.append(Problem(where, "must be 1 or more", str(count), "leave it out for 1"))
    if spec.cpu is not None and spec.block_size % CPU_BLOCK_MULTIPLE:
        found.append(
            Problem(
                "--block-size",
                f"must be a multiple of {CPU_BLOCK_MULTIPLE} on the CPU",
                str(spec.block_size),
                "vLLM starts with other sizes and dies when its worker does; take 32 or 128",
            )
        )
    if spec.cpu is not None and spec.cpu.kv_bytes < 1 << 20:
        found.append(
            Problem("--kv-bytes", "is too small", str(spec.cpu.kv_bytes), "in bytes, or `256m`")
        )
    for argument in spec.extra:
        match = _OURS.match(argument)
        if match:
            flag = f"--{match[1]}"  # the flag alone: its value may be a key
            found.append(
                Problem(
                    "after --",
                    "has an option of its own here",
                    flag,
                    "see --help for it",
                )
            )
    return found


def _kv_problems(spec: EngineSpec) -> list[Problem]:
    found = []
    if spec.role in ("prefill", "decode") and spec.nixl is None:
        found.append(Problem("--role", "needs a way to move the KV cache", spec.role, "add --nixl"))
    if spec.events is not None and not re.search(r"\*|::|^ipc:|^inproc:", spec.events.endpoint):
        found.append(
            Problem(
                "--events",
                "vLLM would connect to this endpoint instead of listening on it",
                spec.events.endpoint,
                "write tcp://*:5557, or ipc:///path for readers on this machine only",
            )
        )
    if spec.events is not None and spec.data_parallel > 1 and "ipc:" in spec.events.endpoint:
        found.append(
            Problem(
                "--events",
                "ipc endpoints have no place for the ranks of a data-parallel engine",
                spec.events.endpoint,
                "write tcp://*:5557; rank r then listens on 5557 + r",
            )
        )
    if spec.offload is not None and spec.cpu is not None and not spec.offload.spec_module:
        found.append(
            Problem(
                "--offload",
                "vLLM's own offloading runs on GPUs only",
                str(spec.offload.host_bytes),
                "leave out --cpu, or name an offloading spec of your own",
            )
        )
    return found


def _port_problems(spec: EngineSpec) -> list[Problem]:
    """Each rank of a data-parallel engine takes the next port: ranges must not meet."""
    ranges = [("--port", spec.port, 1)]
    if spec.events is not None:
        for where, endpoint in (
            ("--events", spec.events.endpoint),
            ("--replay", spec.events.replay),
        ):
            if (port := port_of(endpoint)) is not None:
                ranges.append((where, port, spec.data_parallel))
    if spec.nixl is not None:
        ranges.append(("--nixl-port", spec.nixl.port, spec.data_parallel))
    ranges.sort(key=lambda entry: entry[1])
    found = []
    for (left, first, count), (right, port, _) in itertools.pairwise(ranges):
        if port < first + count:
            what = f"is taken by {left}, which uses {first} to {first + count - 1}"
            hint = "each data-parallel rank takes the next port: leave a gap as wide as --dp"
            found.append(Problem(right, what, str(port), hint))
    return found
