"""Damaged blocks get their names from what was forgotten meanwhile."""

from __future__ import annotations

from pathlib import Path

from harness.blocks import Engine, name
from harness.kvbm_daemon import Served
from harness.waiting import until

from kvbm.events import DISK, HOST, Change
from kvbm.losses import Lost, lost

A, B = b"a" * 32, b"b" * 32


def gone(key: bytes, tier: int = DISK) -> Change:
    return ("removed", tier, 1, key, 0)


def test_what_went_was_damaged_unless_more_went() -> None:
    prints = {1: b"p"}
    other: list[Change] = [gone(A, HOST), ("stored", DISK, 1, B, 9)]
    assert lost(1, [*other, gone(A)], prints) == [Lost("70", A.hex(), True)]
    both = lost(1, [gone(A), gone(B)], prints)
    assert [(one.key, one.certain) for one in both] == [(A.hex(), False), (B.hex(), False)]
    assert lost(1, [gone(A), *other, gone(A)], prints) == [Lost("70", A.hex(), True)]
    assert lost(2, other, prints) == []


def test_a_block_that_a_load_finds_damaged_is_in_the_log(tmp_path: Path) -> None:
    with Served(tmp_path) as served, Engine(served.socket) as engine:
        engine.up().store([1])
        key = engine.client.keys([name(1)])[0].hex()
        served.end()
        [segment] = [p for p in (tmp_path / "disk/kvbm-v1").glob("segment-*") if b"KVBMREC1" in
                     p.read_bytes()]  # fmt: skip
        data = bytearray(segment.read_bytes())
        data[2 * 4096 + 100] ^= 1
        segment.write_bytes(data)
        served.start()
        until(lambda: engine.up().lookup([1]) == [2], "the block")
        done = engine.try_load([1])
        assert done is not None
        assert not done.ok
        until(lambda: served.logged(f" {key}"), "its name")
