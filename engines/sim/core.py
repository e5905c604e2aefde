"""One engine rank at work: scheduler, cache, events and metrics around a single step loop.

One timer paces all requests: a step takes what the profile says, then every request of its batch
gets its token. Nothing here knows of HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from .cache import BlockManager, Event
from .metrics import Metrics
from .scheduler import WAITING_MAX, Scheduler, Step
from .sequence import Sequence, State
from .settings import Settings

_LAG_MAX_S = 0.05  # how far the paced clock may fall behind before it is set anew
_TIMER_GRAIN_S = 0.0005


class EventSink(Protocol):
    """Where KV events of a step go."""

    def publish(self, events: list[Event]) -> None: ...


class Handover(Protocol):
    """The KV hand-over between engines, as the step loop sees it."""

    def queued(self, seq: Sequence) -> None: ...
    def start_pull(self, seq: Sequence, local_blocks: int) -> None: ...
    def lease(self, seq: Sequence) -> bool: ...
    def aborted(self, seq: Sequence) -> None: ...


class EngineFull(Exception):
    """More requests wait than the engine holds."""


class Core:
    """`submit` and `abort` may be called at any time from the loop's thread."""

    def __init__(self, settings: Settings, rank: int, publisher: EventSink | None = None) -> None:
        self.settings, self.rank, self.publisher = settings, rank, publisher
        self.metrics = Metrics(
            rank, settings.served_model_names[0], settings.max_model_len,
            settings.transfer is not None,
        )
        self.cache = self._new_cache()
        self.scheduler = self._new_scheduler()
        self.handover: Handover | None = None
        self.dead: str | None = None
        self.aborted = 0
        self.steps = 0
        self.late_s = 0.0  # steps that took longer than they should have, and were not caught up
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def _new_cache(self) -> BlockManager:
        s = self.settings
        return BlockManager(s.num_gpu_blocks, s.block_size, events=self.publisher is not None)

    def _new_scheduler(self) -> Scheduler:
        s = self.settings
        return Scheduler(self.cache, s.max_num_seqs, s.max_num_batched_tokens,
                         None if s.transfer is None else self._start_pull)

    # -- life

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def restart(self) -> None:
        """As if the process had been killed and started anew: all requests fail, no cache."""
        for seq in (*self.scheduler.running, *self.scheduler.waiting, *self.scheduler.remote):
            seq.state = State.FINISHED
            seq.finish_reason = "error"
            seq.error = "EngineCore was restarted"
            seq.sink(seq, "", -1, "error")
        self.cache = self._new_cache()
        self.scheduler = self._new_scheduler()

    # -- requests

    @property
    def load(self) -> int:
        s = self.scheduler
        return len(s.running) + len(s.waiting) + len(s.remote)

    def submit(self, seq: Sequence) -> None:
        """Queues a generation; its sink hears of every token. Raises EngineFull."""
        if len(self.scheduler.waiting) >= WAITING_MAX:
            raise EngineFull(f"{WAITING_MAX} requests wait already")
        if self.handover is not None:
            self.handover.queued(seq)
        self.scheduler.add(seq)
        self._wake.set()

    def abort(self, seq: Sequence) -> None:
        """Ends a generation whose client left; its blocks are free at once."""
        if seq.state is State.FINISHED:
            return
        if self.handover is not None:
            self.handover.aborted(seq)
        self.scheduler.finish(seq)
        self.aborted += 1
        self.metrics.add("request_success", label="abort")
        self._wake.set()

    def fail(self, seq: Sequence, message: str) -> None:
        """Ends a generation with an error its client is told of."""
        if seq.state is State.FINISHED:
            return
        self.scheduler.finish(seq)
        seq.finish_reason, seq.error = "error", message
        self.metrics.add("request_success", label="error")
        seq.sink(seq, "", -1, "error")
        self._wake.set()

    def wake(self) -> None:
        """Something a waiting request may be waiting for has changed."""
        self._wake.set()

    def now(self) -> float:
        return self._loop.time()

    # -- the step loop

    async def _run(self) -> None:
        deadline = self.now()
        while True:
            step = self.scheduler.schedule(self.now())
            if not step.batch:
                self._wake.clear()
                await self._wake.wait()
                deadline = self.now()
                continue
            ms = self.settings.profile.step_ms(*step.load())
            deadline += ms * self.settings.time_scale / 1000
            delay = deadline - self.now()
            if delay < -_LAG_MAX_S:
                self.late_s -= delay
                deadline = self.now()
            # A timer's grain is a millisecond: shorter waits are carried over to the next step.
            await asyncio.sleep(delay if delay > _TIMER_GRAIN_S else 0)
            self._complete(step)

    def _complete(self, step: Step) -> None:
        self.steps += 1
        now = self.now()
        metrics, limit = self.metrics, self.settings.max_model_len
        generated = 0
        for seq, n in step.batch:
            if seq.state is not State.RUNNING:
                continue
            seq.computed += n
            if seq.computed < len(seq.tokens):
                continue
            generated += 1
            if seq.first_at:
                metrics.itl.observe(now - seq.last_at)
            else:
                self._first_token(seq, now)
            seq.sample(now, limit)
            if seq.finish_reason is not None:
                self._finished(seq, now)
        metrics.add("generation_tokens", generated)
        metrics.observe("iteration_tokens_total", step.tokens)
        self._account()
        if self.publisher is not None:
            events = self.cache.take_events()
            if events:
                self.publisher.publish(events)

    def _account(self) -> None:
        s, m = self.scheduler, self.metrics
        m.add("prefix_cache_queries", s.prefix_queries)
        m.add("prefix_cache_hits", s.prefix_hits)
        m.add("num_preemptions", s.preempted)
        s.prefix_queries = s.prefix_hits = s.preempted = 0

    def _first_token(self, seq: Sequence, now: float) -> None:
        m, cached = self.metrics, seq.local_hit
        local = seq.prompt_len - cached - seq.external
        m.observe("time_to_first_token_seconds", now - seq.arrival)
        m.add("prompt_tokens", seq.prompt_len)
        m.add("prompt_tokens_by_source", local, "local_compute")
        m.add("prompt_tokens_by_source", cached, "local_cache_hit")
        m.add("prompt_tokens_by_source", seq.external, "external_kv_transfer")
        m.add("prompt_tokens_cached", cached + seq.external)
        m.add("prompt_tokens_cached_by_source", cached, "device")
        m.add("prompt_tokens_cached_by_source", seq.external, "p2p")
        m.observe("request_prefill_kv_computed_tokens", local)

    def _finished(self, seq: Sequence, now: float) -> None:
        kept = self.handover is not None and self.handover.lease(seq)
        self.scheduler.finish(seq, keep_blocks=kept)
        seq.finished_at = now
        m, out = self.metrics, seq.output_len
        m.add("request_success", label=seq.finish_reason or "stop")
        m.observe("request_prompt_tokens", seq.prompt_len)
        m.observe("request_generation_tokens", out)
        m.observe("request_max_num_generation_tokens", out)
        m.observe("request_params_n", seq.params.n)
        m.observe("request_params_max_tokens", seq.params.max_tokens)
        m.observe("request_num_preemptions", seq.preemptions)
        m.observe("e2e_request_latency_seconds", now - seq.arrival)
        m.observe("request_queue_time_seconds", seq.first_scheduled - seq.arrival)
        m.observe("request_inference_time_seconds", now - seq.first_scheduled)
        m.observe("request_prefill_time_seconds", seq.first_at - seq.first_scheduled)
        m.observe("request_decode_time_seconds", now - seq.first_at)
        if out > 1:
            m.observe("request_time_per_output_token_seconds", (now - seq.first_at) / (out - 1))

    def _start_pull(self, seq: Sequence, local_blocks: int) -> None:
        assert self.handover is not None
        self.handover.start_pull(seq, local_blocks)

    async def compute(self, tokens: int) -> None:
        """The time a forward pass over `tokens` takes, for what does not generate."""
        ms = self.settings.profile.step_ms([(tokens, 0)], 0, 0) * self.settings.time_scale
        if ms > 0:
            await asyncio.sleep(ms / 1000)
