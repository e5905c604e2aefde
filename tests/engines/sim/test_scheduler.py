"""The scheduler against a capture of vLLM 0.32, and its rules one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from engines.sim.cache import BlockManager
from engines.sim.events import event_map
from engines.sim.msgpack import pack
from engines.sim.scheduler import Scheduler, Step
from engines.sim.sequence import Params, Sequence, State

CAPTURE = Path(__file__).parents[2] / "vectors" / "kv_events_vllm.jsonl"
CAPTURE_BLOCKS = 160  # the cache of the engine it was taken from, in blocks of 32 tokens


def sequence(ids: list[int], out: int = 1, salt: str | None = None) -> Sequence:
    params = Params(max_tokens=out, length=1 << 30, cache_salt=salt)
    return Sequence("s", 0, ids, params, lambda *_: None, 0.0)


def run_step(scheduler: Scheduler, outputs: dict[Sequence, list[int]]) -> Step:
    """One step; sequences say what `outputs` has for them, and end after it."""
    step = scheduler.schedule(0.0)
    for seq, n in step.batch:
        seq.computed += n
        if seq.computed == len(seq.tokens):
            seq.tokens.append(outputs[seq].pop(0))
            if not outputs[seq]:
                scheduler.finish(seq)
    return step


def test_the_events_of_a_real_engine_are_reproduced_byte_for_byte() -> None:
    items = [json.loads(line) for line in CAPTURE.read_text().splitlines()]
    frames = [bytes.fromhex(i["frames_hex"][2]) for i in items if i["kind"] == "frame"]
    cache = BlockManager(CAPTURE_BLOCKS, 32)
    scheduler = Scheduler(cache, 256, 2048)
    batches: list[list[dict[str, Any]]] = []
    for item in (i for i in items if i["kind"] == "request"):
        if item["path"] == "/reset_prefix_cache":
            assert cache.reset()
            continue
        seq = sequence(item["prompt_token_ids"], len(item["token_ids"]), item["cache_salt"])
        scheduler.add(seq)
        outputs = {seq: list(item["token_ids"])}
        for _ in range(200):
            if seq.state is State.FINISHED:
                break
            run_step(scheduler, outputs)
            events = cache.take_events()
            if events:
                batches.append([event_map(e, 32) for e in events])
        assert seq.state is State.FINISHED
    times = [msgspec.msgpack.decode(f)[0] for f in frames]
    assert len(batches) == len(frames) == 14
    assert [pack([t, b, 0]) for t, b in zip(times, batches, strict=True)] == frames


def test_a_long_prompt_is_computed_in_chunks_while_others_decode() -> None:
    scheduler = Scheduler(BlockManager(64, 4), 8, 8)
    short, long = sequence([1] * 4), sequence([2] * 20)
    outputs = {short: [9] * 9, long: [9]}
    scheduler.add(short)
    scheduler.add(long)
    sizes = [[n for _, n in run_step(scheduler, outputs).batch] for _ in range(4)]
    assert sizes == [[4, 4], [1, 7], [1, 7], [1, 2]]


def test_the_budget_and_the_number_of_sequences_are_never_exceeded() -> None:
    scheduler = Scheduler(BlockManager(512, 4), 3, 16)
    outputs = {}
    for i in range(9):
        seq = sequence([i] * (3 + 5 * i))
        outputs[seq] = [1] * (2 + i % 3)
        scheduler.add(seq)
    for _ in range(200):
        step = run_step(scheduler, outputs)
        assert step.tokens <= 16 and len(scheduler.running) <= 3
        if not step.batch:
            break
    assert not scheduler.waiting and not scheduler.running
    assert scheduler.cache.free == scheduler.cache.capacity


def test_the_latest_request_is_preempted_and_comes_back() -> None:
    cache = BlockManager(6, 4)  # five blocks for two requests that grow to three each
    scheduler = Scheduler(cache, 8, 64)
    first, second = sequence([1] * 7), sequence([2] * 7)
    outputs = {first: [5] * 5, second: [6] * 5}
    scheduler.add(first)
    scheduler.add(second)
    for _ in range(20):
        run_step(scheduler, outputs)
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert first.state is second.state is State.FINISHED
    assert second.output_len == 5
    assert cache.free == cache.capacity


def test_the_last_prompt_token_is_never_a_hit() -> None:
    scheduler = Scheduler(BlockManager(64, 4), 8, 64)
    for expected in (0, 8, 8):
        seq = sequence([3] * 12)
        scheduler.add(seq)
        run_step(scheduler, {seq: [1]})
        assert seq.cached == expected


def test_a_finished_request_leaves_from_every_queue() -> None:
    scheduler = Scheduler(BlockManager(4, 4), 1, 64)
    running, waiting = sequence([1] * 4), sequence([2] * 4)
    scheduler.add(running)
    scheduler.add(waiting)
    scheduler.schedule(0.0)
    scheduler.finish(waiting)
    scheduler.finish(running)
    assert not scheduler.running and not scheduler.waiting
    assert scheduler.cache.free == 3


def test_full_report_announces_the_reused_prefix_without_a_copy() -> None:
    cache = BlockManager(64, 4)
    scheduler = Scheduler(cache, 8, 64)
    plain = sequence([4] * 10)
    scheduler.add(plain)
    run_step(scheduler, {plain: [1]})
    stored = cache.cached()
    cache.take_events()
    seq = Sequence("s", 0, [4] * 10, Params(1, 1 << 30, report_full=True), lambda *_: None, 0.0)
    scheduler.add(seq)
    run_step(scheduler, {seq: [1]})
    events = cache.take_events()
    assert [len(event_map(e, 4)["block_hashes"]) for e in events] == [2]
    assert cache.cached() == stored
