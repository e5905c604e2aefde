"""Scripted faults: what goes wrong, when, how often.

SPEC is `kind:key=value,...`, given by `--fault` or `POST /sim/faults` (a JSON list of them, which
replaces those in force). Common keys: `times` (default: always), `p` (probability, with `seed`),
`skip` (let that many pass first), `path` (prefix; default: POST under /v1/).

    delay         ms          answer that much later, head included
    slow_first    ms          head at once, generation starts later
    slow_tokens   ms          that long between chunks
    cut           after, how  close (fin) or reset (rst) after N chunks; a whole reply half way
    half_chunk    after, how  the same in the middle of chunk N+1
    silent                    accept, read, never answer
    silent_after  after       N chunks, then nothing, connection open
    error_after   after       N chunks, then vLLM's error event and [DONE]
    reset         how         close before the head, the body having been read
    garbage                   something that is no HTTP reply
    status        code, retry_after     an error reply
    unhealthy                 503 on /health, everything else works
    events_drop, events_dup, events_late (ms)   KV event batches lost (the replay has them),
                              sent twice, sent late
    events_lost               lost for the replay, too
    events_garbage            sent as bytes that are no batch; the replay has them right
    replay_silent             a replay that is asked for and does not come
    replay_hole               a batch is missing in the middle of a replay
    replay_cut                the second half of a replay and its end are missing, as they are when
                              the socket is full
    sources_port  port        /kv_event_sources tells that port, where nobody publishes
    seq_restart, restart, die at once: sequence numbers from 0; all memory lost; EngineCore dead
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import error_body
from .events import SEND, Sending
from .taps import CutTap, ErrorTap, SilentTap, SlowTap
from .transfer import DEAD
from .wire import Reply, Request

if TYPE_CHECKING:
    from .engine import Engine

FAULTS_MAX = 256
_COMMON = {"times": int, "p": float, "seed": int, "skip": int, "path": str}
_KINDS: dict[str, dict[str, type]] = {
    "delay": {"ms": float}, "slow_first": {"ms": float}, "slow_tokens": {"ms": float},
    "cut": {"after": int, "how": str}, "half_chunk": {"after": int, "how": str},
    "silent": {}, "silent_after": {"after": int}, "error_after": {"after": int},
    "reset": {"how": str}, "garbage": {}, "status": {"code": int, "retry_after": int},
    "unhealthy": {}, "events_drop": {}, "events_dup": {}, "events_late": {"ms": float},
    "events_lost": {}, "events_garbage": {}, "replay_silent": {}, "replay_hole": {},
    "replay_cut": {},
    "sources_port": {"port": int}, "seq_restart": {}, "restart": {}, "die": {},
}
AT_ONCE = ("seq_restart", "restart", "die")


class FaultError(ValueError):
    """A spec that cannot be understood."""


@dataclass(slots=True)
class Fault:
    """One fault and how often it has struck."""

    spec: str
    kind: str
    after: int = 1
    how: str = "fin"
    ms: float = 100.0
    code: int = 500
    port: int = 1
    retry_after: int | None = None
    times: int | None = None
    p: float = 1.0
    skip: int = 0
    path: str | None = None
    seed: int = 0
    hits: int = 0
    seen: int = 0
    random: random.Random = field(default_factory=random.Random)

    @classmethod
    def parse(cls, spec: str) -> Fault:
        """Raises FaultError that names what is wrong."""
        kind, _, rest = spec.partition(":")
        if kind not in _KINDS:
            raise FaultError(f"unknown fault `{kind}` in `{spec}`\nhint: one of "
                             f"{', '.join(_KINDS)}")
        fault = cls(spec, kind)
        known = {**_COMMON, **_KINDS[kind]}
        for pair in filter(None, rest.split(",")):
            key, equals, value = pair.partition("=")
            if key not in known or not equals:
                raise FaultError(f"fault `{kind}` has no key `{key}` in `{spec}`\nhint: it has "
                                 f"{', '.join(known)}")
            try:
                setattr(fault, key, known[key](value))
            except ValueError as exc:
                raise FaultError(f"`{key}` in fault `{spec}` must be a number") from exc
        if fault.how not in ("fin", "rst"):
            raise FaultError(f"`how` in fault `{spec}` must be fin or rst")
        fault.random.seed(fault.seed)
        if kind == "unhealthy" and fault.path is None:
            fault.path = "/health"
        return fault

    def strikes(self) -> bool:
        """Whether it happens this time; counts."""
        if self.times is not None and self.hits >= self.times:
            return False
        self.seen += 1
        if self.seen <= self.skip or (self.p < 1.0 and self.random.random() >= self.p):
            return False
        self.hits += 1
        return True

    def meets(self, request: Request) -> bool:
        if self.kind.startswith(("events_", "replay_", "sources_")):
            return False
        if self.path is not None:
            return request.path.startswith(self.path)
        return request.method == "POST" and request.path.startswith("/v1/")


class Faults:
    """All faults of one engine."""

    def __init__(self, specs: Iterable[str], engine: Engine) -> None:
        self._engine = engine
        self._faults: list[Fault] = []
        self.replace(list(specs))

    def replace(self, specs: Sequence[str], keep: bool = False) -> None:
        """Puts `specs` in force, beside those of before if `keep`. Raises FaultError."""
        fresh = [Fault.parse(s) for s in specs]
        faults = (self._faults if keep else []) + [f for f in fresh if f.kind not in AT_ONCE]
        if len(faults) > FAULTS_MAX:
            raise FaultError(f"at most {FAULTS_MAX} faults at a time")
        self._faults = faults
        for fault in fresh:
            if fault.kind == "restart":
                self._engine.restart()
            elif fault.kind == "die":
                self._engine.die(DEAD)
            elif fault.kind == "seq_restart":
                for publisher in self._engine.publishers:
                    if publisher is not None:
                        publisher.restart()

    def state(self) -> list[dict[str, Any]]:
        return [{"spec": f.spec, "hits": f.hits} for f in self._faults]

    def sending(self) -> Sending:
        """What becomes of one KV event batch."""
        for fault in self._faults:
            if fault.kind.startswith("events_") and fault.strikes():
                if fault.kind == "events_late":
                    return Sending((fault.ms / 1000,))
                if fault.kind == "events_dup":
                    return Sending((0.0, 0.0))
                if fault.kind == "events_garbage":
                    return Sending(garbage=True)
                return Sending((), kept=fault.kind == "events_drop")
        return SEND

    def replaying(self) -> str:
        """How a replay goes: whole, silent, hole or cut."""
        for fault in self._faults:
            if fault.kind.startswith("replay_") and fault.strikes():
                return fault.kind.removeprefix("replay_")
        return "whole"

    def told_port(self) -> int:
        """The port that events are said to come from, 0 = the real one."""
        for fault in self._faults:
            if fault.kind == "sources_port" and fault.strikes():
                return fault.port
        return 0

    async def apply(self, request: Request, reply: Reply) -> bool:
        """True when a fault has taken the place of the reply."""
        for fault in self._faults:
            if fault.meets(request) and fault.strikes() and await self._strike(fault, reply):
                return True
        return False

    async def _strike(self, fault: Fault, reply: Reply) -> bool:
        kind = fault.kind
        if kind == "delay":
            await asyncio.sleep(fault.ms / 1000)
        elif kind == "slow_first":
            reply.delay_s = fault.ms / 1000
        elif kind == "slow_tokens":
            reply.tap = SlowTap(fault.ms / 1000)
        elif kind in ("cut", "half_chunk"):
            reply.tap = CutTap(fault.after, fault.how == "rst", kind == "half_chunk")
        elif kind == "silent_after":
            reply.tap = SilentTap(fault.after)
        elif kind == "error_after":
            reply.tap = ErrorTap(fault.after)
        else:
            return _instead(fault, reply)
        return False


def _instead(fault: Fault, reply: Reply) -> bool:
    """Faults that leave no place for a real reply."""
    if fault.kind == "reset":
        reply.drop(fault.how == "rst")
    elif fault.kind == "garbage":
        reply.conn.write(b"\x00\x01 this is no reply\r\n\r\n")
        reply.drop(False)
    elif fault.kind in ("status", "unhealthy"):
        code = 503 if fault.kind == "unhealthy" else fault.code
        headers = [] if fault.retry_after is None else [("retry-after", str(fault.retry_after))]
        kind = {429: "Too Many Requests", 503: "ServiceUnavailableError"}.get(
            code, "InternalServerError")
        reply.json(code, error_body("scripted fault", kind, code), headers)
    return True
