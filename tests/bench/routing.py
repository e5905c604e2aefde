#!/usr/bin/env python3
"""What a kv-aware routing decision costs, and what it takes to keep the index it is made with.

`routing.py --json -` prints one JSON line; a table goes to stderr. All times are of one thread.

* `hash_ns_per_block`: block hashes of fresh 8 192-token prompts, 16 tokens a block.
* `ingest_blocks_per_s`: batches in vLLM's form, token ids included, prefills of 2 048-token chunks;
  a call returns when the index answers for the blocks, so nothing is left to drain.
  `ingest_steady_blocks_per_s`: each stored block besides one removed by an event of its own.
* `bytes_per_block`: what the index allocated, or growth of resident memory where that is more, over
  (block, engine) pairs; `bytes_per_block_alone`: the same if no two engines share a block.
* `select_us_p50`, `select_us_p99`: a decision (lookup and cost) for an 8 192-token prompt of which
  half is cached, 64 loaded engines, 1 M pairs, every prompt another one so that nothing of it is in
  the processor's caches; hashing the prompt's blocks included. `..._ingest`: while another thread
  takes in events without pause. `match_us_p50`: the lookup alone, as Python calls it.
* `tokenize_us_per_kb`, `turn_us`: see `routing_tokens.py`.

Figures are medians over rounds, `--quick` makes one short round.
"""

from __future__ import annotations

import argparse
import gc
import platform
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fleet
import jsonline
import routing_tokens

from native import _core
from native._core import Index, Prompt

ENGINES = 64
PAIRS = 1_000_000
PROMPT_BLOCKS = 512  # 8 192 tokens
SYSTEM_BLOCKS = 64
BIG = 1 << 34


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def hash_ns(rounds: int) -> float:
    writer = fleet.Writer(1)
    packed = [writer.ids(PROMPT_BLOCKS).tobytes() for _ in range(64)]
    figures = []
    for _ in range(rounds):
        prompts = [Prompt(ids) for ids in packed]
        start = time.perf_counter_ns()
        for prompt in prompts:
            prompt.hashes(fleet.BLOCK)
        figures.append((time.perf_counter_ns() - start) / (len(prompts) * PROMPT_BLOCKS))
    return statistics.median(figures)


def ingest(rounds: int, blocks: int) -> dict[str, float]:
    fresh, steady = [], []
    for turn in range(rounds):
        writer = fleet.Writer(turn)
        talks = [writer.start(PROMPT_BLOCKS) for _ in range(blocks // PROMPT_BLOCKS)]
        more = [writer.start(PROMPT_BLOCKS) for _ in talks]
        stores = [frame for talk in talks for frame in fleet.frames(talk)]
        # In a full engine evictions come with what they make room for.
        both = [
            frame
            for new, old in zip(more, talks, strict=True)
            for pair in zip(fleet.eviction(old), fleet.frames(new), strict=True)
            for frame in pair
        ]
        index = Index(BIG)
        slot = index.add_engine()
        fresh.append(len(talks) * PROMPT_BLOCKS / timed(index, slot, stores))
        assert index.match(Prompt(talks[-1].packed(1)), [slot], 0.0)[0].device == 8192
        steady.append(len(talks) * PROMPT_BLOCKS / timed(index, slot, both))
        assert index.stats().pairs == len(talks) * PROMPT_BLOCKS
    return {
        "ingest_blocks_per_s": statistics.median(fresh),
        "ingest_steady_blocks_per_s": statistics.median(steady),
    }


def timed(index: Index, slot: int, frames: list[bytes]) -> float:
    """Seconds that taking in the frames takes."""
    start = time.perf_counter()
    for frame in frames:
        index.apply(slot, frame)
    return time.perf_counter() - start


Talks = list[fleet.Conversation]


def plan(slots: list[int], shared: bool) -> tuple[list[tuple[int, bytes]], Talks]:
    """1 M pairs as (slot, frame), and the conversations they are of, half a prompt long."""
    rng = random.Random(7)
    writer = fleet.Writer(8)
    steps: list[tuple[int, bytes]] = []
    talks: Talks = []
    systems = [writer.start(SYSTEM_BLOCKS if shared else 0) for _ in range(16)]
    own = PROMPT_BLOCKS // 2 - len(systems[0].names)
    for frame in (frame for system in systems for frame in fleet.frames(system)):
        steps += [(slot, frame) for slot in slots]
    pairs = len(systems) * len(systems[0].names) * len(slots)
    while pairs < PAIRS:
        talk = writer.extend(rng.choice(systems), own)
        holders = rng.sample(slots, rng.choice((1, 1, 1, 2, 4)) if shared else 1)
        frames = fleet.frames(talk, len(talk.names) - own)
        steps += [(slot, frame) for slot in holders for frame in frames]
        pairs += own * len(holders)
        talks.append(talk)
    return steps, talks


def memory(shared: bool) -> tuple[float, Index, list[int], Talks]:
    """Bytes a pair: as the index says, or by growth of resident memory if that is more."""
    index = Index(BIG)
    slots = [index.add_engine() for _ in range(ENGINES)]
    steps, talks = plan(slots, shared)
    gc.collect()
    before = resident()
    for slot, frame in steps:
        index.apply(slot, frame)
    grown = resident() - before
    stats = index.stats()
    assert stats.pairs >= PAIRS
    return max(grown, stats.bytes) / stats.pairs, index, slots, talks


def questions(talks: Talks) -> Iterator[bytes]:
    """Prompts of which the first half is a conversation that is cached somewhere."""
    order = random.Random(9).sample(talks, len(talks))
    more = (PROMPT_BLOCKS - len(talks[0].names)) * fleet.BLOCK
    return (talk.packed(more) for talk in order)


Decide = Callable[[Prompt], object]


def decision(index: Index, slots: list[int]) -> Decide:
    """A call that picks an engine for a prompt, all engines eligible and under some load."""
    ledger = _core.Ledger(1, len(slots))
    ledger.bind(0)
    handles = [ledger.add_engine() for _ in slots]
    rng = random.Random(11)
    for handle in handles:
        for _ in range(rng.randrange(8)):
            ledger.acquire(handle)
    fit = _core.Fit("h100-70b-tp4")
    each = len(slots)
    columns = [1] * each, [0] * each, [fit] * each, [fit.kv_tokens] * each
    scorer = _core.Scorer(ledger, index, handles, slots, *columns)
    eligible = b"\1" * each
    return lambda prompt: scorer.select(prompt, eligible, 0.0, 7)


def select(decide: Decide, asked: list[bytes]) -> list[float]:
    """Microseconds of each decision, sorted."""
    figures = []
    for ids in asked:
        prompt = Prompt(ids)
        start = time.perf_counter_ns()
        decide(prompt)
        figures.append((time.perf_counter_ns() - start) / 1000)
    return sorted(figures)


def selects(index: Index, slots: list[int], asked: list[bytes], rounds: int) -> dict[str, float]:
    sample = index.match(Prompt(asked[0]), slots, 0.0)
    assert max(match.device for match in sample) == PROMPT_BLOCKS // 2 * fleet.BLOCK
    decide = decision(index, slots)
    matches = [select(lambda prompt: index.match(prompt, slots, 0.0), asked) for _ in range(rounds)]
    quiet = [select(decide, asked) for _ in range(rounds)]
    stop = threading.Event()
    writer = fleet.Writer(10)
    noise = [writer.start(PROMPT_BLOCKS) for _ in range(64)]
    frames = [frame for talk in noise for frame in fleet.frames(talk) + fleet.eviction(talk)]

    def feed() -> None:
        while not stop.is_set():
            timed(index, slots[0], frames)

    feeder = threading.Thread(target=feed)
    feeder.start()
    busy = [select(decide, asked) for _ in range(rounds)]
    stop.set()
    feeder.join()

    def at(runs: list[list[float]], share: float) -> float:
        return statistics.median(run[int(len(run) * share)] for run in runs)

    return {
        "match_us_p50": at(matches, 0.5),
        "select_us_p50": at(quiet, 0.5),
        "select_us_p99": at(quiet, 0.99),
        "select_us_p50_ingest": at(busy, 0.5),
        "select_us_p99_ingest": at(busy, 0.99),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    jsonline.option(parser)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    rounds = 1 if args.quick else 5
    figures: dict[str, float] = {"hash_ns_per_block": hash_ns(3 if args.quick else 30)}
    figures |= ingest(rounds, 50_000 if args.quick else 200_000)
    figures["bytes_per_block_alone"] = memory(False)[0]
    figures["bytes_per_block"], index, slots, talks = memory(True)
    figures |= selects(index, slots, list(questions(talks)), rounds)
    figures |= routing_tokens.figures(args.quick)
    for name, value in figures.items():
        print(f"{name:28} {value:14,.2f}", file=sys.stderr)
    line = {"machine": platform.processor() or platform.machine()} | figures
    jsonline.write(line, args.json)


if __name__ == "__main__":
    main()
