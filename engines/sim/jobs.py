"""One request at the engine: its generations, who is told of their tokens, and its end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from .core import Core, EngineFull
from .errors import ApiError
from .params import of_choice
from .sequence import Params, Sequence
from .wire import Reply, Request

if TYPE_CHECKING:
    from .engine import Engine

CHOICES_MAX = 1024


class Writer(Protocol):
    """Turns tokens into bytes of a reply; called from the engine's step."""

    def token(self, seq: Sequence, delta: str, token: int) -> None: ...
    def done(self, job: Job) -> None: ...


def request_id(request: Request, prefix: str) -> str:
    return f"{prefix}-{request.get('x-request-id') or secrets.token_hex(8)}"


def pick_core(engine: Engine, request: Request) -> Core:
    """The rank a request asks for, or the one with least to do. Raises ApiError 400."""
    cores = engine.cores
    wanted = request.get("x-data-parallel-rank")
    if wanted is None:
        return min(cores, key=lambda c: c.load)
    try:
        rank = int(wanted)
    except ValueError:
        rank = -1
    if not 0 <= rank < len(cores):
        raise ApiError(400, f"data_parallel_rank {wanted} is out of range [0, {len(cores)}).")
    return cores[rank]


class Job:
    """`prompts` x n generations of one request. `wait` returns when all have ended."""

    def __init__(self, engine: Engine, request: Request, reply: Reply, name: str) -> None:
        self.engine, self.reply, self.id = engine, reply, name
        self.core = pick_core(engine, request)
        if self.core.dead is not None:
            raise ApiError(500, self.core.dead)
        self.sequences: list[Sequence] = []
        self.writer: Writer | None = None
        self._left = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, prompt: list[int], params: Params, sampled: bool) -> None:
        """`n` generations of one prompt. Raises ApiError."""
        transfer = self.engine.transfer
        if transfer is not None and params.kv_transfer_params is not None:
            transfer.check(params.kv_transfer_params)
        for at in range(params.n):
            if len(self.sequences) >= CHOICES_MAX:
                raise ApiError(400, f"at most {CHOICES_MAX} choices in one request")
            self.sequences.append(Sequence(
                f"{self.id}-{secrets.token_hex(4)}", len(self.sequences), prompt,
                of_choice(params, at, sampled), self._sink, self.core.now(),
            ))

    def start(self, writer: Writer | None = None) -> None:
        """Hands all generations to the engine; `writer` hears of every token."""
        self.writer = writer
        self._left = len(self.sequences)
        self.reply.on_gone = self.abort
        if self.reply.gone:
            self.abort()
            return
        try:
            for seq in self.sequences:
                self.core.submit(seq)
        except EngineFull as exc:
            self.abort()
            raise ApiError(503, str(exc)) from exc

    async def wait(self) -> None:
        """Raises ApiError when a generation failed and nobody was told while streaming."""
        await self._done
        if self.writer is None:
            for seq in self.sequences:
                if seq.error is not None:
                    raise ApiError(500, seq.error)

    def abort(self) -> None:
        for seq in self.sequences:
            self.core.abort(seq)
        if not self._done.done():
            self._done.set_result(None)

    def _sink(self, seq: Sequence, delta: str, token: int, reason: str | None) -> None:
        if self.writer is not None:
            self.writer.token(seq, delta, token)
        if reason is None:
            return
        self._left -= 1
        if self._left == 0 and not self._done.done():
            if self.writer is not None:
                self.writer.done(self)
            self._done.set_result(None)

    # -- what replies say about it

    @property
    def prompt_tokens(self) -> int:
        """Each prompt once, whatever n is."""
        step = self.sequences[0].params.n
        return sum(s.prompt_len for s in self.sequences[::step])

    def usage(self, *, details: bool = True, created: bool = True) -> dict[str, Any]:
        """`usage` of a whole reply: nulls for details the engine was not asked to report."""
        prompt, out = self.prompt_tokens, sum(s.output_len for s in self.sequences)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt, "total_tokens": prompt + out, "completion_tokens": out}
        if details:
            usage["prompt_tokens_details"] = self.prompt_details(created)
            usage["completion_tokens_details"] = None
        return usage

    @property
    def cached_tokens(self) -> int:
        last = self.sequences[-1]
        if last.remote_cached is not None:
            return last.remote_cached
        return (last.cached or 0) + last.external

    @property
    def created_cache_tokens(self) -> int:
        """Prompt tokens whose blocks this request added to the cache."""
        first, size = self.sequences[0], self.engine.settings.block_size
        return max(first.prompt_len // size * size - self.cached_tokens, 0)

    def prompt_details(self, created: bool = True) -> dict[str, Any] | None:
        """Where the engine reports them; completions leave out what was created."""
        if not self.engine.settings.enable_prompt_tokens_details:
            return None
        return {"cached_tokens": self.cached_tokens,
                "created_cache_tokens": self.created_cache_tokens if created else None,
                "multimodal_tokens": None}

    @property
    def kv_transfer_params(self) -> Mapping[str, Any] | None:
        return self.sequences[0].kv_result
