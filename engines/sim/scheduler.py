"""Continuous batching with chunked prefill, as vLLM's V1 scheduler decides it.

Each step first serves running requests in order (one token each, or the next chunk of a prompt)
within the token budget, then admits waiting ones, first come first served. A running request that
finds no block preempts the latest one. Decisions only: no clock, no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from . import text
from .cache import BlockManager, Stored
from .sequence import Sequence, State

WAITING_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Step:
    """One batch: (sequence, tokens computed in this step)."""

    batch: tuple[tuple[Sequence, int], ...]

    @property
    def tokens(self) -> int:
        return sum(n for _, n in self.batch)

    def load(self) -> tuple[list[tuple[int, int]], int, int]:
        """What the step-time model needs: prefill chunks, decoding requests, their KV tokens."""
        prefills, decodes, kv = [], 0, 0
        for seq, n in self.batch:
            if n == 1 and seq.computed >= seq.prompt_len:
                decodes += 1
                kv += seq.computed
            else:
                prefills.append((n, seq.computed))
        return prefills, decodes, kv


class Scheduler:
    """`start_pull` is called for a request whose KV lies in another engine; it later calls
    `pulled` or `pull_failed`."""

    def __init__(self, cache: BlockManager, max_num_seqs: int, max_num_batched_tokens: int,
                 start_pull: Callable[[Sequence, int], None] | None = None) -> None:
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self._start_pull = start_pull
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.remote: set[Sequence] = set()
        self.preempted = 0
        self.prefix_queries = self.prefix_hits = 0  # tokens

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def schedule(self, now: float) -> Step:
        budget = self.max_num_batched_tokens
        batch: list[tuple[Sequence, int]] = []
        preempted = self.preempted
        at = 0
        while at < len(self.running) and budget > 0:
            seq = self.running[at]
            n = min(len(seq.tokens) - seq.computed, budget)
            if not self._make_room(seq, seq.computed + n):
                break
            self._store(seq, seq.computed + n)
            batch.append((seq, n))
            budget -= n
            at += 1
        if self.preempted == preempted:
            self._admit(now, budget, batch)
        return Step(tuple(batch))

    def finish(self, seq: Sequence, keep_blocks: bool = False) -> None:
        """Takes a sequence out, wherever it is; its blocks go free unless they are kept."""
        if seq.state is State.RUNNING:
            self.running.remove(seq)
        elif seq.state is State.WAITING and seq in self.waiting:
            self.waiting.remove(seq)
        self.remote.discard(seq)
        seq.state = State.FINISHED
        if not keep_blocks:
            self.cache.release(seq.blocks)
            seq.blocks = []

    def pulled(self, seq: Sequence, tokens: int) -> None:
        """`tokens` of the prompt now lie in the sequence's blocks; at least one is left to do."""
        self.remote.discard(seq)
        seq.pulled = True
        seq.computed = min(tokens, seq.prompt_len - 1)
        self._store(seq, tokens)
        self._requeue(seq)

    def pull_failed(self, seq: Sequence) -> None:
        """The prompt has to be computed here, from the local hit on."""
        self.remote.discard(seq)
        seq.pulled = True
        seq.external = 0
        seq.computed = seq.local_hit
        self._requeue(seq)

    # -- internals

    def _requeue(self, seq: Sequence) -> None:
        seq.state = State.WAITING
        self.waiting.appendleft(seq)

    def _make_room(self, seq: Sequence, length: int) -> bool:
        """Blocks for `length` tokens, preempting later sequences; False if `seq` itself fell."""
        missing = -(-length // self.cache.block_size) - len(seq.blocks)
        if missing <= 0:
            return True
        while True:
            taken = self.cache.allocate(missing)
            if taken is not None:
                seq.blocks += taken
                return True
            victim = self.running.pop()
            self._drop_blocks(victim)
            victim.preemptions += 1
            self.preempted += 1
            self._requeue(victim)
            if victim is seq:
                return False

    def _admit(self, now: float, budget: int, batch: list[tuple[Sequence, int]]) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            seq = self.waiting[0]
            if not seq.blocks and not self._take_prefix(seq):
                break
            if self._must_pull(seq):
                if not self._pull(seq):
                    break
                continue
            n = min(len(seq.tokens) - seq.computed, budget)
            missing = -(-(seq.computed + n) // self.cache.block_size) - len(seq.blocks)
            taken = self.cache.allocate(max(missing, 0))
            if taken is None:
                if not seq.pulled:
                    self._drop_blocks(seq)
                break
            self.waiting.popleft()
            seq.blocks += taken
            seq.state = State.RUNNING
            seq.first_scheduled = seq.first_scheduled or now
            self.running.append(seq)
            self._store(seq, seq.computed + n)
            batch.append((seq, n))
            budget -= n

    def _take_prefix(self, seq: Sequence) -> bool:
        """References the cached prefix; never the whole prompt, whose last token must be run."""
        size = self.cache.block_size
        hashes = seq.block_hashes(size)[: (len(seq.tokens) - 1) // size]
        hit = self.cache.lookup(hashes)
        needed = -(-len(seq.tokens) // size) - len(hit)
        first = -(-min(self.max_num_batched_tokens, len(seq.tokens)) // size) - len(hit)
        room = self.cache.free - self.cache.in_free_list(hit)
        if room < min(max(first, 0), needed):
            return False
        self.cache.touch(hit)
        seq.blocks = list(hit)
        seq.computed = len(hit) * size
        seq.stored = len(hit)
        if seq.cached is not None:
            return True
        seq.cached = seq.local_hit = seq.computed
        self.prefix_queries += len(seq.tokens)
        self.prefix_hits += seq.computed
        if hit:
            self._check_contents(seq)
            if seq.params.report_full:
                self.cache.announce(self._stored(seq, 0, len(hit)))
        return True

    def _must_pull(self, seq: Sequence) -> bool:
        params = seq.params.kv_transfer_params
        if seq.pulled or self._start_pull is None or params is None:
            return False
        return bool(params.get("do_remote_prefill"))

    def _pull(self, seq: Sequence) -> bool:
        """Hands the sequence, with blocks for its whole prompt, to the transfer; False: no room."""
        assert self._start_pull is not None
        total = -(-seq.prompt_len // self.cache.block_size)
        taken = self.cache.allocate(total - len(seq.blocks))
        if taken is None:
            self._drop_blocks(seq)
            return False
        self.waiting.popleft()
        seq.blocks += taken
        seq.state = State.REMOTE
        self.remote.add(seq)
        self._start_pull(seq, seq.computed // self.cache.block_size)
        return True

    def _drop_blocks(self, seq: Sequence) -> None:
        self.cache.release(seq.blocks)
        seq.blocks, seq.computed, seq.stored = [], 0, 0

    def _store(self, seq: Sequence, length: int) -> None:
        """Caches the blocks that `length` computed tokens fill, and notes what they hold."""
        full = length // self.cache.block_size
        if full > seq.stored:
            hashes = seq.block_hashes(self.cache.block_size)
            full = min(full, len(hashes))
        if full > seq.stored:
            stored = self._stored(seq, seq.stored, full)
            self.cache.store(seq.blocks[seq.stored : full], stored)
            seq.stored = full

    def _stored(self, seq: Sequence, start: int, end: int) -> Stored:
        size, lora = self.cache.block_size, seq.params.lora
        return Stored(
            tuple(seq.hashes[start:end]), seq.hashes[start - 1] if start else None,
            tuple(seq.tokens[start * size : end * size]),
            tuple(seq.event_extra(i) for i in range(start, end)),
            None if lora is None else lora.name, None if lora is None else lora.id,
            seq.params.session_id,
        )

    def _check_contents(self, seq: Sequence) -> None:
        """A block that was filled with wrong KV spoils every generation that reuses it."""
        size = self.cache.block_size
        expected = text.block_digests(seq.tokens, len(seq.blocks) * size, size)
        wrong = [
            c for i, e in zip(seq.blocks, expected, strict=True)
            if (c := self.cache.blocks[i].content) not in (0, e)
        ]
        if wrong:
            seq.digest = text.corrupt(seq.digest, wrong)
