"""kvbm's remote tier against bare obstore on the same real S3 server, at equal concurrency.

Interleaved in one run: objects that kvbm sent are read by obstore alone (bytes thrown away), and
through core, courier and client into an engine's slots, every byte verified. Ratios ours / bare.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median

import obstore
from harness.seaweed import BUCKET, Seaweed
from kvbm_rig import Rig

from kvbm.conf.model import Remote
from kvbm.remote import layout
from kvbm.remote.courier import Courier

CONCURRENCY = 16


def options(url: str, upload: str, block: int) -> Remote:
    return Remote(
        f"s3://{BUCKET}/{block}", endpoint=url, region="us-east-1", access_key="a",
        secret_key="s", upload=upload, timeout_s=30.0, concurrency=CONCURRENCY,
    )  # fmt: skip


def wait(condition: object, seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.005)


async def bare(url: str, block: int, paths: list[str]) -> float:
    """Seconds to get all objects, CONCURRENCY at a time."""
    store = obstore.store.from_url(
        f"s3://{BUCKET}/{block}",
        config={"endpoint": url, "region": "us-east-1", "access_key_id": "a",
                "secret_access_key": "s"},
        client_options={"allow_http": True},
    )  # fmt: skip
    room = asyncio.Semaphore(CONCURRENCY)

    async def get(path: str) -> int:
        async with room:
            return len(await (await obstore.get_async(store, path)).bytes_async())

    began = time.perf_counter()
    await asyncio.gather(*(get(path) for path in paths))
    return time.perf_counter() - began


def ratio(root: Path, weed: Seaweed, block: int, count: int, rounds: int) -> tuple[float, float]:
    """Reading ours / bare, and our bytes a second."""
    sender = Rig(root / "out", block, 1 << 30, remote_blocks=1 << 20, upload="all")
    courier = Courier(options(weed.url, "all", block), sender.core)
    courier.start()
    sender.run(sender.client.store, range(count))
    wait(lambda: courier.figures()["remote_sent"] == count)
    [(_, fingerprint, *_)] = sender.core.namespaces()
    keys = [key for _, key, *_ in sender.core.blocks(0, 65536)[0]]
    paths = [layout.block(fingerprint, key) for key in keys]
    courier.stop()
    sender.stop()
    # No disk: what is fetched is not kept, so that each round fetches.
    reader = Rig(root / "in", block, 0, host_bytes=1 << 22, remote_blocks=1 << 20, upload="off")
    fetcher = Courier(options(weed.url, "off", block), reader.core)
    fetcher.start()
    wait(lambda: int(reader.core.stats()["remote_blocks"]) >= count)
    ratios, speeds = [], []
    for _ in range(rounds):
        theirs = asyncio.run(bare(weed.url, block, paths))
        ours = reader.run(reader.client.load, range(count))
        ratios.append(theirs / ours)
        speeds.append(block * count / ours)
    fetcher.stop()
    reader.stop()
    return median(ratios), median(speeds)


def remote(root: Path, rounds: int) -> dict[str, float]:
    found = {}
    with Seaweed(root) as weed:
        for name, block, count in (("remote", 1 << 20, 64), ("remote_small", 64 << 10, 256)):
            (root / name / "out").mkdir(parents=True)
            (root / name / "in").mkdir()
            value, speed = ratio(root / name, weed, block, count, rounds)
            found[f"{name}_vs_obstore"] = value
            found[f"{name}_mb_s"] = speed / 1e6
    return found
