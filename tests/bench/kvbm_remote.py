"""kvbm's remote tier against bare obstore on the same real S3 server, at equal concurrency.

Interleaved in one run: objects that kvbm sent are read by obstore alone (bytes thrown away), and
through core, courier and client into an engine's slots, every byte verified. Small blocks are sent
and read alone and in bundles, and obstore reads the bundles as they are. Ratios ours / bare.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

import obstore
import uvloop
from harness.seaweed import BUCKET, Seaweed
from kvbm_rig import Rig, name

from kvbm.conf.model import Remote
from kvbm.remote import layout
from kvbm.remote.courier import Courier

CONCURRENCY = 16
SENDING = CONCURRENCY // 2
BUNDLE = {"bundle_bytes": 4 << 20, "bundle_below": 256 << 10, "bundle_s": 0.2}
PER_BUNDLE = 60  # blocks of 64 KiB
STEP_S = 0.001  # a short step of an engine's scheduler
READS = 5  # of each kind in a round: one takes a fraction of a second, and others use the processor


def wait(condition: object, seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.005)


@dataclass
class Bare:
    """obstore alone on one folder of the bucket, on the event loop that costs it least."""

    url: str
    folder: str
    store: Any = field(init=False)

    def __post_init__(self) -> None:
        self.store = obstore.store.from_url(
            f"s3://{BUCKET}/{self.folder}",
            config={"endpoint": self.url, "region": "us-east-1", "access_key_id": "a",
                    "secret_access_key": "s"},
            client_options={"allow_http": True},
        )  # fmt: skip

    def names(self) -> list[tuple[str, int]]:
        rows = itertools.chain.from_iterable(obstore.list(self.store, prefix=layout.ROOT))
        return [(row["path"], row["size"]) for row in rows]

    def get(self, paths: list[str]) -> float:
        """Seconds to get all objects, CONCURRENCY at a time."""

        async def one(path: str) -> None:
            await (await obstore.get_async(self.store, path)).bytes_async()

        return uvloop.run(self._each(one, paths, CONCURRENCY))

    def put(self, paths: list[str], data: bytes) -> float:
        """Seconds to create all objects, as many at a time as a courier does."""

        async def one(path: str) -> None:
            await obstore.put_async(self.store, path, data, mode="create")

        return uvloop.run(self._each(one, paths, SENDING))

    async def _each(self, work: Any, paths: list[str], most: int) -> float:
        room = asyncio.Semaphore(most)

        async def held(path: str) -> None:
            async with room:
                await work(path)

        began = time.perf_counter()
        await asyncio.gather(*(held(path) for path in paths))
        return time.perf_counter() - began


class Machine:
    """A daemon's core, its courier and an engine. Use as a context manager."""

    def __init__(self, root: Path, url: str, folder: str, rig: Rig, upload: str) -> None:
        remote = Remote(
            f"s3://{BUCKET}/{folder}", endpoint=url, region="us-east-1", access_key="a",
            secret_key="s", upload=upload, timeout_s=30.0, concurrency=CONCURRENCY,
        )  # fmt: skip
        self.rig, self.courier = rig, Courier(remote, rig.core)

    @classmethod
    def sender(cls, root: Path, url: str, folder: str, block: int, **bundle: Any) -> Machine:
        root.mkdir(parents=True)
        rig = Rig(root, block, 2 << 30, remote_blocks=1 << 20, upload="all", **bundle)
        return cls(root, url, folder, rig, "all")

    @classmethod
    def reader(cls, root: Path, url: str, folder: str, block: int, slots: int) -> Machine:
        """No disk: what is fetched is not kept, so that each round fetches."""
        root.mkdir(parents=True)
        rig = Rig(root, block, 0, host_bytes=1 << 22, remote_blocks=1 << 20, upload="off",
                  slots=slots, per_job=min(slots, 64), step_s=STEP_S)  # fmt: skip
        return cls(root, url, folder, rig, "off")

    def __enter__(self) -> Machine:
        self.courier.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.courier.stop()
        self.rig.stop()

    def send(self, blocks: range) -> float:
        """Seconds until all of them are in the store, by way of the disk."""
        before = int(self.courier.figures()["remote_sent"])
        began = time.perf_counter()
        self.rig.run(self.rig.client.store, blocks)
        wait(lambda: int(self.courier.figures()["remote_sent"]) == before + len(blocks))
        return time.perf_counter() - began

    def load(self, blocks: range) -> float:
        return self.rig.run(self.rig.client.load, blocks)

    def knows(self, blocks: int) -> None:
        wait(lambda: int(self.rig.core.stats()["remote_blocks"]) >= blocks)


def whole(root: Path, url: str, rounds: int, block: int = 1 << 20, count: int = 128) -> list[float]:
    """Reading ours / bare of objects of a megabyte, and our bytes a second."""
    with Machine.sender(root / "out", url, "whole", block) as sender:
        sender.send(range(count))
    bare = Bare(url, "whole")
    paths = [path for path, size in bare.names() if size > block]
    ratios, speeds = [], []
    with Machine.reader(root / "in", url, "whole", block, count) as reader:
        reader.knows(count)
        for turn in range(READS * rounds):
            theirs, ours = in_turn(turn, lambda: bare.get(paths), lambda: reader.load(range(count)))
            ratios.append(theirs / ours)
            speeds.append(block * count / ours / 1e6)
    return [median(ratios), median(speeds)]


def in_turn(turn: int, *works: Callable[[], float]) -> list[float]:
    """What each gives; another one begins each time, as the store tidies up after whoever was."""
    first = turn % len(works)
    found = {at: works[at]() for at in [*range(first, len(works)), *range(first)]}
    return [found[at] for at in range(len(works))]


def small(root: Path, url: str, rounds: int, block: int = 64 << 10) -> dict[str, float]:
    """The same of small blocks, alone and in bundles."""
    count = 8 * PER_BUNDLE
    rows: dict[str, list[float]] = {}

    def add(**figures: float) -> None:
        for key, value in figures.items():
            rows.setdefault(key, []).append(value)

    alone, bundled = Bare(url, "alone"), Bare(url, "bundled")
    with (
        Machine.sender(root / "one", url, "alone", block) as one,
        Machine.sender(root / "many", url, "bundled", block, **BUNDLE) as many,
    ):
        for turn in range(rounds):
            blocks = range(turn * count, (turn + 1) * count)
            theirs = alone.put([f"x/{turn}/{n}" for n in blocks], bytes(block + 4096))
            add(send_alone=theirs / one.send(blocks), send=theirs / many.send(blocks))
    keys = {key.hex() for key in _keys(root / "keys", block, range(count))}
    singles = [path for path, _ in alone.names() if path.rpartition("/")[2] in keys]
    objects = [path for path, size in bundled.names() if "/bundles/" in path][: count // PER_BUNDLE]
    with (
        Machine.reader(root / "a", url, "alone", block, count) as one,
        Machine.reader(root / "b", url, "bundled", block, count) as many,
    ):
        one.knows(count * rounds)
        many.knows(count * rounds)
        for turn in range(READS * rounds):
            theirs, theirs_whole, ours_alone, ours = in_turn(
                turn,
                lambda: alone.get(singles),
                lambda: bundled.get(objects),
                lambda: one.load(range(count)),
                lambda: many.load(range(count)),
            )
            add(alone=theirs / ours_alone, bundled=theirs / ours, whole=theirs_whole / ours)
            add(speed=block * count / ours / 1e6)
    return {key: median(values) for key, values in rows.items()}


def _keys(root: Path, block: int, blocks: range) -> list[bytes]:
    root.mkdir()
    rig = Rig(root, block, 0, host_bytes=1 << 22)
    keys = rig.client.keys([name(n) for n in blocks])
    rig.stop()
    return keys


def remote(root: Path, rounds: int) -> dict[str, float]:
    with Seaweed(root) as weed:
        ratio, speed = whole(root / "whole", weed.url, rounds)
        of = small(root / "small", weed.url, rounds)
    return {
        "remote_vs_obstore": ratio,
        "remote_mb_s": speed,
        "remote_small_vs_obstore": of["bundled"],
        "remote_small_alone_vs_obstore": of["alone"],
        "remote_bundle_vs_obstore": of["whole"],
        "remote_small_mb_s": of["speed"],
        "remote_small_send_vs_obstore": of["send"],
        "remote_small_send_alone_vs_obstore": of["send_alone"],
    }
