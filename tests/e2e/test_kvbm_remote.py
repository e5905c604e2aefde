"""The remote tier on a real S3 server: what one machine sends, another loads, and its faults."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.blocks import Engine, name
from harness.kvbm_daemon import DISK, Served, command
from harness.seaweed import BUCKET, Seaweed
from harness.waiting import until

REMOTE = 3


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with Seaweed(tmp_path_factory.mktemp("weed")) as weed:
        yield weed


def text(weed: Seaweed, folder: str) -> str:
    keys = "access_key file:key; secret_key file:key;"
    return (
        f"{DISK}\nremote {{ url s3://{BUCKET}/{folder}; endpoint {weed.url}; {keys} upload all;"
        " refresh 1s; breaker 2 pause=300ms; timeout 2s; }\n"
    )


def served(root: Path, configuration: str) -> Served:
    root.mkdir(exist_ok=True)
    (root / "key").write_text("any\n")
    return Served(root, configuration)


def test_blocks_go_through_a_bucket(tmp_path: Path, weed: Seaweed) -> None:
    configuration = text(weed, "a")
    with served(tmp_path / "one", configuration) as one, Engine(one.socket) as engine:
        engine.up().store(range(20))
        until(lambda: one.tier("remote")["sent"] == 20, "the sends", 30.0)
        with served(tmp_path / "two", configuration) as two, Engine(two.socket) as other:
            until(lambda: other.up().lookup(range(20)) == [REMOTE] * 20, "them", 30.0)
            blocks = list(range(19, 3, -1))
            done = other.load(blocks)
            assert done.ok, list(done.statuses)
            assert all(other.holds(slot, block) for slot, block in enumerate(blocks))
            other.store([1])
            assert two.tier("remote")["fetched"] == 16
            assert "ok    remote" in command("doctor", "-c", str(two.file)).stdout
            assert command("drop", "-c", str(two.file), "--all").returncode == 0


def test_a_daemon_that_lost_its_disk_finds_its_blocks_there(tmp_path: Path, weed: Seaweed) -> None:
    with served(tmp_path, text(weed, "b")) as daemon, Engine(daemon.socket) as engine:
        engine.up().store(range(5))
        until(lambda: daemon.tier("remote")["sent"] == 5, "the sends", 30.0)
        daemon.end(signal.SIGKILL)
        shutil.rmtree(tmp_path / "disk")
        daemon.start()
        until(lambda: engine.lookup(range(5)) == [REMOTE] * 5, "the blocks again", 30.0)
        assert engine.load([4, 0]).ok
        assert engine.holds(0, 4)
        assert engine.holds(1, 0)


@pytest.mark.parametrize("bundle", ["off", "300k wait=100ms"], ids=["alone", "bundles"])
def test_what_lies_there_only_is_listed_verified_and_dropped(
    tmp_path: Path, weed: Seaweed, bundle: str
) -> None:
    configuration = text(weed, f"d{len(bundle)}").replace(
        "refresh 1s", f"bundle {bundle}; refresh 1s"
    )
    with served(tmp_path / "one", configuration) as one, Engine(one.socket) as engine:
        engine.up().store(range(20))
        until(lambda: one.tier("remote")["sent"] == 20, "the sends", 30.0)
        with served(tmp_path / "two", configuration) as two, Engine(two.socket) as other:
            until(lambda: other.up().lookup(range(20)) == [REMOTE] * 20, "them", 30.0)
            where = ("-c", str(two.file))
            shown = command("ls", *where).stdout.splitlines()
            assert [line.split()[4:] for line in shown] == [["remote"]] * 20
            read = command("verify", *where, "--remote")
            assert (read.returncode, "remote: 20 blocks" in read.stdout) == (0, True), read
            assert other.client.fingerprint is not None
            print = other.client.fingerprint.hex()
            [key] = other.client.keys([name(3)])
            assert "remote 1 " in command("drop", *where, print, key.hex()).stdout
            gone = command("drop", *where, print[:8], "--all")
            assert (gone.returncode, "remote 19 " in gone.stdout) == (0, True), gone
            assert other.lookup(range(20)) == [0] * 20
            # The one that sent them sees it by the next listing.
            until(lambda: one.tier("remote")["blocks"] == 0, "its view", 30.0)
            assert "remote: 0 blocks" in command("verify", *where, "--remote").stdout


def test_a_bundle_that_another_deleted_is_gone_with_all_its_blocks_after_one_load(
    tmp_path: Path, weed: Seaweed
) -> None:
    configuration = text(weed, "e").replace("refresh 1s", "bundle 300k wait=100ms; refresh 1h")
    with served(tmp_path / "one", configuration) as one, Engine(one.socket) as engine:
        engine.up().store(range(4))
        until(lambda: one.tier("remote")["bundled"] == 4, "the bundle", 30.0)
        with served(tmp_path / "two", configuration) as two, Engine(two.socket) as other:
            until(lambda: other.up().lookup(range(4)) == [REMOTE] * 4, "it", 30.0)
            assert command("drop", "-c", str(one.file), "--all").returncode == 0
            assert other.lookup(range(4)) == [REMOTE] * 4, "nothing has told it"
            done = other.try_load([2])
            assert done is not None
            assert list(done.statuses) == [1]
            assert other.lookup(range(4)) == [0] * 4
            assert (two.tier("remote")["absent"], two.tier("remote")["bundles"]) == (1, 0)


def test_a_bucket_that_is_not_there_is_told(tmp_path: Path, weed: Seaweed) -> None:
    configuration = text(weed, "c").replace(f"s3://{BUCKET}/", "s3://no-such-bucket-here/")
    with served(tmp_path, configuration) as daemon, Engine(daemon.socket) as engine:
        until(lambda: daemon.logged("remote: s3://no-such-bucket-here/c: "), "the log", 10.0)
        engine.up().store([1])
        assert engine.load([1]).ok
