"""The daemon with a remote tier: a directory that two machines share, and a store with faults."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.blocks import Engine
from harness.kvbm_daemon import DISK, Served, command
from harness.s3 import S3
from harness.waiting import until

REMOTE, ON_DISK, MISS = 3, 2, 0
LOOK = "refresh 1s; breaker 2 pause=300ms; timeout 500ms; concurrency 4; bundle off;"


def tiers(url: str, more: str = "") -> str:
    return f"{DISK}\nremote {{ url {url}; upload all; {LOOK} {more} }}\n"


def objects(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and len(path.name) == 64]


def test_what_one_machine_sends_another_finds(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    for which in ("one", "two"):
        (tmp_path / which).mkdir()
    text = tiers(f"file://{shared}")
    with Served(tmp_path / "one", text) as one, Engine(one.socket) as engine:
        engine.up().store(range(6))
        until(lambda: len(objects(shared)) == 6, "the objects", 10.0)
        until(lambda: one.tier("remote")["sent"] == 6, "the count")
        until(lambda: any(shared.rglob("namespace.json")), "what the namespace is")
        with Served(tmp_path / "two", text) as two, Engine(two.socket) as other:
            until(lambda: other.up().lookup(range(7)) == [REMOTE] * 6 + [MISS], "them", 10.0)
            assert other.load([5, 0]).ok
            assert other.holds(0, 5)
            assert other.holds(1, 0)
            assert two.tier("remote")["fetched"] == 2
            # What the other one stores again is there already.
            other.store([1])
            until(lambda: other.lookup([1]) == [ON_DISK], "it on disk")
            assert two.tier("remote")["sent"] == 0
            assert command("drop", "-c", str(two.file), "--all").returncode == 0
            assert objects(shared) == []


def test_whatever_the_daemon_makes_is_its_users_alone(tmp_path: Path) -> None:
    """Blocks are what people wrote: a store in a directory is as private as the disk."""
    shared, conf = tmp_path / "shared" / "deep", tmp_path / "kvbm.conf"
    events = f"events ipc://{tmp_path}/events;\npid run/kvbm.pid;\n"
    text = events + tiers(f"file://{shared}").replace("bundle off;", "bundle 4m wait=20ms;")
    mask = os.umask(0o022)  # the daemon's comes from the harness, the commands' from here
    try:
        with Served(tmp_path, text) as served, Engine(served.socket) as engine:
            assert command("doctor", "-c", str(conf)).returncode == 0
            engine.up().store(range(4))
            until(lambda: served.tier("remote")["bundles_sent"] >= 1, "a bundle", 10.0)
            engine.store([9])
            until(lambda: served.tier("remote")["sent"] == 5, "a block alone", 10.0)
            until(lambda: any(shared.rglob("namespace.json")), "what the namespace is")
            made = [path for path in tmp_path.rglob("*") if path != conf]
            modes = {str(path): f"{stat.S_IMODE(path.lstat().st_mode):o}" for path in made}
    finally:
        os.umask(mask)
    assert len(objects(shared)) >= 2
    assert {path: mode for path, mode in modes.items() if not mode.endswith("00")} == {}


@pytest.fixture
def store() -> Iterator[S3]:
    with S3() as store:
        yield store


def s3(store: S3) -> str:
    return tiers("s3://bucket/p", f"endpoint {store.url}; access_key a; secret_key file:key;")


def test_a_store_over_http_with_its_faults(tmp_path: Path, store: S3) -> None:
    (tmp_path / "key").write_text("s\n")
    with Served(tmp_path, s3(store)) as served, Engine(served.socket) as engine:
        engine.up().store(range(4))
        until(lambda: len(store.blocks()) == 4, "the objects", 10.0)
        until(lambda: served.tier("remote")["blocks"] == 4, "that they are known")
        assert served.status()["state"] == "ok"
        store.fault = "503"
        engine.store([10])
        until(lambda: served.tier("remote")["breaker_opened"] >= 1, "the breaker", 10.0)
        assert served.status()["state"] == "degraded"
        assert engine.load([10]).ok, "the disk goes on"
        store.fault = ""
        until(lambda: len(store.blocks()) == 5, "what was not sent in the meantime", 20.0)
        until(lambda: served.status()["state"] == "ok", "health again", 10.0)


@pytest.mark.parametrize("fault", ["hang", "reset", "half", "wrong"])
def test_faulty_answers_are_misses_in_time(tmp_path: Path, store: S3, fault: str) -> None:
    (tmp_path / "key").write_text("s\n")
    with Served(tmp_path, s3(store)) as served, Engine(served.socket) as engine:
        engine.up().store(range(2))
        until(lambda: len(store.blocks()) == 2, "the objects", 10.0)
        served.end()
        shutil.rmtree(tmp_path / "disk")
        served.start()
        until(lambda: engine.up().lookup([0, 1]) == [REMOTE, REMOTE], "them", 10.0)
        store.fault = fault
        done = engine.try_load([0])
        assert done is not None
        assert not done.ok
        assert done.statuses[0] in (1, 16, 17, 20)
        assert done.spent_us < 5_000_000
        store.fault = ""

        def loaded() -> bool:
            # A damaged object is deleted; what the store still has comes back after the pause.
            if engine.lookup([1]) != [REMOTE] and engine.lookup([1]) != [ON_DISK]:
                return False
            again = engine.try_load([1])
            return again is not None and again.ok and engine.holds(0, 1)

        until(loaded, "the other block", 15.0)


def test_a_store_without_the_bucket_is_told_and_the_rest_goes_on(tmp_path: Path, store: S3) -> None:
    (tmp_path / "key").write_text("s\n")
    store.fault = "404"
    with Served(tmp_path, s3(store)) as served, Engine(served.socket) as engine:
        until(lambda: served.logged("remote: s3://bucket/p: there is no such bucket"), "the log")
        engine.up().store([1])
        assert engine.load([1]).ok
        assert served.tier("remote")["good"] == 0
        found = command("doctor", "-c", str(served.file))
        assert "BAD   remote s3://bucket/p" in found.stdout
        store.fault = ""
        assert "ok    remote s3://bucket/p" in command("doctor", "-c", str(served.file)).stdout
