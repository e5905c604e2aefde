#!/usr/bin/env python3
"""What kvbm's store costs and gives, against the disk itself: interleaved ratios in one run.

`kvbm.py --json -` prints one JSON line; a table goes to stderr. Each round writes and reads the
same shape with fio (io_uring, O_DIRECT, same block size and depth) and through client and daemon,
every byte checksummed; figures are medians over the rounds, ratios ours / fio (larger is better).

Keys: disk_write_vs_fio, disk_read_vs_fio (1 MiB), small_write_vs_fio, small_vs_fio (64 KiB): both
write into files whose room is reserved and that nobody has written to; disk_rewrite_vs_fio,
small_rewrite_vs_fio: both into files that were written before, as on a disk that has filled up;
lookup_us_p50 and _p99 (per key, shared table), round_trip_us_p50 and _p99 (a question over the
socket), absent_us_per_step (what a scheduler's step pays without a daemon), submit_us, poll_us,
recovery_s_per_million, bytes_per_block, host_vs_memcpy (an engine's block into the arena and out of
it again, against plain copies of the same bytes), where `weed` is installed remote_vs_obstore
(1 MiB), remote_small_vs_obstore (blocks of 64 KiB in bundles, against objects of one block) and
_alone_, the same without bundles, remote_bundle_vs_obstore (against reading the bundles alone),
remote_small_send_vs_obstore (writing, by way of the disk) and the speeds behind them, and where
vLLM's environment is
ready_vs_fs_tier (lookup until the block is in host memory, against vLLM's file tier, as an engine
with steps of a millisecond sees it; load_vs_fs_tier: with steps of 0.1 ms) and
tier_absent_us_per_step (a whole step of vLLM's tiering manager that looks 8 blocks up).
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

# Before this folder, whose kvbm.py is not the package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jsonline
import kvbm_tier
from harness.seaweed import program
from kvbm_rig import DEPTH, Rig, name

from native import _core

SPENT = 4  # segments that were emptied and are written again


def fio(root: Path, rw: str, block: int, count: int) -> float:
    """Bytes a second."""
    command = [
        "fio", "--name=x", "--ioengine=io_uring", "--direct=1", f"--rw={rw}", f"--bs={block}",
        f"--iodepth={DEPTH}", f"--size={block * count}", "--filename=fio.file",
        "--output-format=json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    side = "write" if rw == "write" else "read"
    return float(json.loads(done.stdout)["jobs"][0][side]["bw_bytes"])


def shape(root: Path, block: int, count: int, rounds: int) -> dict[str, float]:
    """Ratios of one block size. A file system takes longer for a file's first writes than for later
    ones, so fio's file is as fresh as the segments are."""
    capacity = max(2 << 30, 3 * rounds * block * count)
    rig = Rig(root, block, capacity)
    ratios: dict[str, list[float]] = {"write": [], "read": [], "rewrite": []}

    def beside(what: str, rw: str, begin: Callable[..., bool], blocks: Sequence[int]) -> None:
        theirs = fio(root, rw, block, count)
        ratios[what].append(block * count / rig.run(begin, blocks) / theirs)

    turns = (range(at, at + count) for at in itertools.count(0, count))
    for _ in range(rounds):
        blocks = next(turns)
        (root / "fio.file").unlink(missing_ok=True)
        beside("write", "write", rig.client.store, blocks)
        beside("read", "randread", rig.client.load, blocks[::-1])
    while int(rig.core.stats()["disk_segments_freed"]) < SPENT:
        rig.run(rig.client.store, next(turns))
    for _ in range(rounds):
        beside("rewrite", "write", rig.client.store, next(turns))
    rig.stop()
    shutil.rmtree(root / "disk")
    return {what: median(values) for what, values in ratios.items()}


def percentiles(call: Callable[[], object], times: int, each: int = 1) -> tuple[float, float]:
    """Microseconds of the median and the 99th percentile, per part of a call."""
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        spent.append((time.perf_counter() - began) * 1e6 / each)
    spent.sort()
    return spent[times // 2], spent[times * 99 // 100]


def calls(root: Path) -> dict[str, float]:
    rig = Rig(root, 4096, 1 << 30)
    rig.run(rig.client.store, range(2048))
    names = [name(n) for n in range(512)]
    found = {}
    found["lookup_us_p50"], found["lookup_us_p99"] = percentiles(
        lambda: rig.client.lookup(names), 500, len(names)
    )
    trip = percentiles(lambda: rig.client.pin(names[:1], 1), 500)
    found["round_trip_us_p50"], found["round_trip_us_p99"] = trip
    job = iter(range(1 << 30, 1 << 40))
    submits = []
    for _ in range(200):
        began = time.perf_counter()
        rig.client.load(next(job), names[:8], list(range(8)))
        submits.append((time.perf_counter() - began) * 1e6)
        while rig.client.under_way:
            rig.client.poll()
    found["submit_us"] = median(submits)
    found["poll_us"] = percentiles(lambda: [rig.client.poll() for _ in range(100)], 100, 100)[0]
    rig.stop()
    shutil.rmtree(root / "disk")
    absent = _core.KvbmClient(str(root / "nobody"), "bench", b"{}", bytes(32), 4096)

    def step() -> None:
        absent.lookup(names[:32])
        absent.store(1, names[:8], list(range(8)))
        absent.poll()

    found["absent_us_per_step"] = percentiles(step, 2000)[0]
    return found


def recovery(root: Path, blocks: int) -> dict[str, float]:
    rig = Rig(root, 64, blocks * 8192 * 2 + (1 << 30))
    rig.run(rig.client.store, range(blocks))
    index = int(rig.core.stats()["disk_index_bytes"])
    rig.stop()
    core = _core.KvbmCore(rig.socket, disk=rig.disk)
    stats = core.stats()
    core.stop()
    shutil.rmtree(root / "disk")
    assert stats["disk_recovered"] == blocks
    return {
        "recovery_s_per_million": int(stats["disk_recovery_us"]) / blocks,
        "bytes_per_block": index / blocks,
    }


def host(root: Path, rounds: int, block: int = 1 << 20, count: int = 64) -> dict[str, float]:
    """Hand-over through the arena: reserve, copy, commit; look up, fetch, copy, release."""
    rig = Rig(root, block, 0, host_bytes=(count + 8) * (block + 4096))
    fd, size, _ = rig.client.arena() or (0, 0, 0)
    mine, other = memoryview(bytearray(os.urandom(block))), memoryview(bytearray(block))
    pool = memoryview(bytearray(count * block))
    ratios = []
    with mmap.mmap(fd, size) as arena:
        view = memoryview(arena)
        for turn in range(rounds + 1):
            names = [name(turn * count + n) for n in range(count)]
            began = time.perf_counter()
            for at in range(0, count * block, block):
                pool[at : at + block] = mine
            for at in range(0, count * block, block):
                other[:] = pool[at : at + block]
            plain = time.perf_counter() - began
            began = time.perf_counter()
            reserved = rig.client.reserve(names, chain=False)
            for _, page, _ in reserved:
                view[page * 4096 : page * 4096 + block] = mine
            rig.client.commit([seat[1:] for seat in reserved])
            rig.client.fetch(turn, names)
            while not (done := rig.client.poll()):
                pass
            for page, generation in done[0].seats:
                other[:] = view[page * 4096 : page * 4096 + block]
                assert rig.client.valid(page, generation)
            rig.client.release(done[0].seats)
            ratios.append(plain / (time.perf_counter() - began))
        view.release()
    os.close(fd)
    rig.stop()
    return {"host_vs_memcpy": median(ratios[1:])}  # the first one touches fresh pages


def main() -> None:
    parser = argparse.ArgumentParser(description="kvbm's store against the disk itself")
    jsonline.option(parser)
    parser.add_argument("--dir", type=Path, help="where the disk is (a temporary directory)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=256, help="moved per round and direction")
    parser.add_argument("--blocks", type=int, default=200_000, help="blocks of the recovery")
    options = parser.parse_args()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=options.dir) as temporary:
        root = Path(temporary)
        if shutil.which("fio"):
            mib = options.mib
            large = shape(root, 1 << 20, mib, options.rounds)
            found |= {f"disk_{what}_vs_fio": ratio for what, ratio in large.items()}
            small = shape(root, 64 << 10, 16 * mib, options.rounds)
            found |= {f"small_{what}_vs_fio": ratio for what, ratio in small.items()}
            found["small_vs_fio"] = found.pop("small_read_vs_fio")
        else:
            print("fio is not there: no ratios against the disk", file=sys.stderr)
        found |= calls(root)
        found |= recovery(root, options.blocks)
        found |= host(root, options.rounds)
        if program():
            from kvbm_remote import remote

            found |= remote(root, options.rounds)
        if kvbm_tier.is_possible():
            found |= kvbm_tier.tier(root, options.rounds)
    found = {key: round(value, 3) for key, value in found.items()}
    for key, value in found.items():
        print(f"{key:24} {value:10.3f}", file=sys.stderr)
    jsonline.write(found, options.json)


if __name__ == "__main__":
    main()
