"""The daemon with bundles of small blocks: a directory that machines share, and S3 with faults."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.blocks import Engine, name
from harness.kvbm_daemon import DISK, Served, command
from harness.s3 import S3
from harness.waiting import until

REMOTE, ON_DISK, MISS = 3, 2, 0
LOOK = "refresh 1s; breaker 2 pause=300ms; timeout 500ms; concurrency 4;"
BUNDLE = "bundle 300k wait=100ms;"  # four blocks of 64 KiB


def tiers(url: str, more: str = "") -> str:
    return f"{DISK}\nremote {{ url {url}; upload all; {LOOK} {BUNDLE} {more} }}\n"


def files(root: Path, folder: str) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and folder in path.parts]


def test_what_one_machine_bundles_another_finds_and_either_drops(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    for which in ("one", "two"):
        (tmp_path / which).mkdir()
    text = tiers(f"file://{shared}")
    with Served(tmp_path / "one", text) as one, Engine(one.socket) as engine:
        engine.up().store(range(8))
        until(lambda: one.tier("remote")["bundled"] == 8, "the bundles", 10.0)
        assert one.tier("remote")["sent"] == 8
        assert one.tier("remote")["bundles_sent"] == len(files(shared, "bundles"))
        with Served(tmp_path / "two", text) as two, Engine(two.socket) as other:
            until(lambda: other.up().lookup(range(9)) == [REMOTE] * 8 + [MISS], "them", 10.0)
            assert other.load([2, 0, 1]).ok
            assert [other.holds(slot, n) for slot, n in enumerate([2, 0, 1])] == [True] * 3
            assert two.tier("remote")["fetches"] < 3
            keys = [key.hex() for key in other.client.keys([name(2), name(3)])]
            assert other.client.fingerprint is not None
            print = other.client.fingerprint.hex()
            assert command("drop", "-c", str(two.file), print, *keys).returncode == 0
            until(lambda: len(files(shared, "dropped")) == 2, "the marks", 10.0)
            until(lambda: one.tier("remote")["blocks"] == 6, "that the other one sees them", 10.0)
            for served in (one, two):
                served.end()
                served.start()
            until(lambda: two.tier("remote")["blocks"] == 6, "that they stay dropped", 10.0)
            for served in (one, two):
                assert command("drop", "-c", str(served.file), "--all").returncode == 0
            folders = ("bundles", "dropped")
            until(lambda: not any(files(shared, each) for each in folders), "nothing left", 20.0)


@pytest.fixture
def store() -> Iterator[S3]:
    with S3() as store:
        yield store


def s3(root: Path, store: S3) -> str:
    (root / "key").write_text("s\n")
    return tiers("s3://bucket/p", f"endpoint {store.url}; access_key a; secret_key file:key;")


def bundles(store: S3) -> list[str]:
    return [path for path in list(store.objects) if "/bundles/" in path]


# What becomes of four blocks of a bundle: 0 right, 1 absent, 16 failed, 17 damaged, 20 late.
FAULTS = {"hang": {1, 16, 20}, "reset": {1, 16}, "half": {0, 1, 16}, "wrong": {0, 17},
          "short": {17}, "gone": {1}}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_bundles_are_misses_in_time(tmp_path: Path, store: S3, fault: str) -> None:
    with Served(tmp_path, s3(tmp_path, store)) as served, Engine(served.socket) as engine:
        engine.up().store(range(4))
        until(lambda: served.tier("remote")["bundled"] == 4, "the bundle", 10.0)
        served.end()
        shutil.rmtree(tmp_path / "disk")
        served.start()
        until(lambda: engine.up().lookup(range(4)) == [REMOTE] * 4, "it", 10.0)
        held = dict(store.objects)
        for path in bundles(store):
            if fault == "short":
                store.objects[path] = store.objects[path][:5000]
            elif fault == "gone":
                del store.objects[path]
        store.fault = fault if fault in ("hang", "reset", "half", "wrong") else ""
        done = engine.try_load([0, 1, 2, 3])
        assert done is not None
        assert not done.ok
        assert set(done.statuses) <= FAULTS[fault], list(done.statuses)
        for slot, status in enumerate(done.statuses):
            assert status or engine.holds(slot, slot)
        assert done.spent_us < 5_000_000
        store.fault = ""
        store.objects.update(held)
        engine.store([9])
        until(lambda: served.status()["state"] == "ok", "health again", 10.0)


def test_a_bundle_that_cannot_be_sent_is_sent_later(tmp_path: Path, store: S3) -> None:
    with Served(tmp_path, s3(tmp_path, store)) as served, Engine(served.socket) as engine:
        engine.up().store([100])
        until(lambda: served.tier("remote")["sent"] == 1, "one", 10.0)
        store.fault = "503"
        engine.store(range(4))
        until(lambda: served.tier("remote")["breaker_opened"] >= 1, "the breaker", 10.0)
        assert engine.load([0]).ok, "the disk goes on"
        store.fault = ""
        until(lambda: served.tier("remote")["blocks"] == 5, "what was not sent", 20.0)
        assert len(bundles(store)) == 1
