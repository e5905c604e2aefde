"""What an operator's commands do about blocks that lie in the object store only: list, drop; by the
store's own listing, whoever sent them, and told where it could not be done.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness.blocks import Engine, name
from harness.kvbm_daemon import Served, command
from harness.s3 import S3
from harness.stored import (
    ALONE,
    BUNDLES,
    LOOK,
    MISS,
    ON_DISK,
    OTHER_PROBE,
    REMOTE,
    Two,
    ask,
    drop,
    fingerprint,
    keys,
    listed,
    objects,
    s3,
)
from harness.waiting import until


def test_a_list_names_every_tier_of_a_block(two: Two, tmp_path: Path) -> None:
    sent, engine, knows, other = two(ALONE)
    assert set(map(tuple, listed(sent).values())) == {("disk", "remote")}
    assert listed(knows) == {key: ["remote"] for key in keys(engine, *range(9))}
    assert len(listed(knows, "-n", "4")) == 4
    assert len(listed(knows, fingerprint(other)[:6])) == 9
    assert other.load([3]).ok
    until(lambda: other.lookup([3]) == [ON_DISK], "it on disk")
    found = listed(knows)
    assert (len(found), found[keys(other, 3)[0]]) == (9, ["disk", "remote"])
    lines = ask(knows, "ls").stdout.splitlines()
    assert sorted(line.split()[4:] for line in lines) == [["disk", "remote"]] + [["remote"]] * 8


def test_blocks_of_the_host_are_listed_and_dropped(tmp_path: Path) -> None:
    text = f"host {{ size 8m; }}\nremote {{ url file://{tmp_path}/shared; {LOOK} {ALONE} }}\n"
    with Served(tmp_path, text) as served, Engine(served.socket) as engine:
        granted = engine.up().client.reserve([name(0), name(1)])
        assert [status for status, *_ in granted] == [0, 0]
        seats = [(page, generation) for _, page, generation in granted]
        assert engine.client.commit(seats) == b"\0\0"
        until(lambda: served.tier("remote")["sent"] == 2, "the sends", 20.0)
        engine.client.release(seats)
        assert listed(served) == {key: ["host", "remote"] for key in keys(engine, 0, 1)}
        done = drop(served, "--all")
        assert (done["host"], done["disk"], done["remote"]) == (2, 0, 2)
        assert (listed(served), objects(tmp_path / "shared")) == ({}, [])


@pytest.mark.parametrize("more", [ALONE, BUNDLES], ids=["alone", "bundles"])
def test_single_blocks_that_lie_there_only_are_dropped_and_counted(
    two: Two, tmp_path: Path, more: str
) -> None:
    sent, engine, knows, other = two(more)
    shared = tmp_path / "shared"
    print = fingerprint(other)
    done = drop(knows, print[:8], *keys(other, 0, 1), "ff" * 32)
    assert (done["host"], done["disk"], done["remote"], done["why"]) == (0, 0, 2, "")
    assert other.lookup(range(9)) == [MISS] * 2 + [REMOTE] * 7
    assert len(listed(knows)) == 7
    # It is so for the others, too, and for whoever comes later.
    until(lambda: sent.tier("remote")["blocks"] == 7, "the other one's view", 10.0)
    done = drop(sent, print, *keys(other, *range(2, 9)))
    assert (done["disk"], done["remote"], done["failed"]) == (7, 7, 0)
    assert objects(shared) == []
    assert listed(sent) == {key: ["disk"] for key in keys(engine, 0, 1)}
    said = ask(knows, "drop", print, *keys(other, 0))
    assert (said.returncode, said.stdout) == (
        0, "blocks dropped: host 0, disk 0, remote 0 (0 objects)\n",
    )  # fmt: skip


@pytest.mark.parametrize("more", [ALONE, BUNDLES], ids=["alone", "bundles"])
def test_all_of_a_namespace_goes_wherever_it_lies(two: Two, tmp_path: Path, more: str) -> None:
    sent, engine, knows, other = two(more)
    shared = tmp_path / "shared"
    with Engine(sent.socket, probe=OTHER_PROBE) as third:
        third.up().store(range(4))
        until(lambda: sent.tier("remote")["sent"] == 13, "another namespace's", 20.0)
        drop(sent, fingerprint(engine), *keys(engine, 8))  # leaves a mark, if it is in a bundle
        until(lambda: other.lookup([8]) == [MISS], "that the other hears of it", 20.0)
        assert other.load([5]).ok
        until(lambda: other.lookup([5]) == [ON_DISK], "one on the disk")
        done = drop(knows, fingerprint(other)[:8], "--all")
        assert (done["host"], done["disk"], done["remote"]) == (0, 1, 8)
        assert other.lookup(range(9)) == [MISS] * 9
        left = objects(shared)
        assert left
        assert all(fingerprint(third) in path.parts for path in left)
        # Nobody has named that one to this daemon.
        assert len(listed(knows)) == 0
        done = drop(knows, fingerprint(third)[:8], "--all")
        assert (done["objects"] > 0, done["why"], objects(shared)) == (True, "", [])
        until(lambda: sent.tier("remote")["blocks"] == 0, "that the sender sees it", 10.0)
        assert set(map(tuple, listed(sent).values())) == {("disk",)}
        assert drop(sent, "--all")["disk"] == 8 + 4


def lost_disk(served: Served, engine: Engine, blocks: range) -> None:
    """Blocks that the store has, and this daemon no more."""
    engine.up().store(blocks)
    until(lambda: served.tier("remote")["sent"] == len(blocks), "the sends", 20.0)
    served.end()
    shutil.rmtree(served.root / "disk")
    served.start()
    until(lambda: engine.up().lookup(blocks) == [REMOTE] * len(blocks), "them", 20.0)


def test_a_large_drop_is_few_requests(tmp_path: Path, store: S3) -> None:
    with Served(tmp_path, s3(tmp_path, store)) as served, Engine(served.socket) as engine:
        engine.up().store(range(30))
        until(lambda: len(store.blocks()) == 30, "the sends", 20.0)
        until(lambda: served.tier("remote")["blocks"] == 30, "that they are known")
        del store.requests[:]
        done = drop(served, "--all")
        assert (done["disk"], done["remote"], done["objects"]) == (30, 30, 30)
        assert store.blocks() == []
        assert store.requests.count("POST") + store.requests.count("DELETE") <= 2


@pytest.mark.parametrize("fault", ["503", "read-only", "reset"])
@pytest.mark.parametrize("more", [ALONE, BUNDLES], ids=["alone", "bundles"])
def test_what_could_not_be_deleted_is_told(
    tmp_path: Path, store: S3, fault: str, more: str
) -> None:
    with Served(tmp_path, s3(tmp_path, store, more)) as served, Engine(served.socket) as engine:
        lost_disk(served, engine, range(6))
        engine.store([7])
        until(lambda: served.tier("remote")["blocks"] == 7, "one more", 20.0)
        held = set(store.objects)
        store.fault = fault
        some = drop(served, fingerprint(engine), *keys(engine, 0, 1), status=1)
        assert (some["remote"], some["failed"], bool(some["why"])) == (0, 2, True)
        done = drop(served, fingerprint(engine), "--all", status=1)
        assert (done["disk"], done["remote"], bool(done["why"])) == (1, 0, True)
        said = ask(served, "drop", "--all")
        assert said.returncode == 1
        drop(served, fingerprint(engine), *keys(engine, 0, 1, 2, 4), status=1)
        assert said.stderr.startswith("kvbm: ")
        assert {path for path in held if "/probe" not in path} <= set(store.objects)
        store.fault = ""
        # What stays there is found again by the next listing, and can be dropped then.
        blocks = [*range(6), 7]
        until(lambda: engine.lookup(blocks) == [REMOTE] * 7, "it again", 20.0)
        until(lambda: served.status()["state"] == "ok", "health again", 10.0)
        done = drop(served, "--all")
        assert (done["remote"], done["why"], store.blocks()) == (7, "", [])


def test_loads_go_on_while_deletions_hang(tmp_path: Path, store: S3) -> None:
    text = s3(tmp_path, store).replace("timeout 1s", "timeout 20s")
    with Served(tmp_path, text) as served, Engine(served.socket) as engine:
        lost_disk(served, engine, range(8))
        with Engine(served.socket, probe=OTHER_PROBE) as other:
            other.up().store(range(3))
            until(lambda: served.tier("remote")["blocks"] == 11, "another namespace's", 20.0)
            store.fault = "stuck"
            begun = drop(served, fingerprint(other), "--all", "--no-wait")
            assert begun["done"] is False
            until(lambda: other.lookup(range(3)) == [REMOTE] * 3, "the disk's drop")
            second = ask(served, "drop", "--all")
            assert (second.returncode, "a drop is under way" in second.stderr) == (1, True)
            assert engine.load([0, 3, 7]).ok
            assert engine.holds(1, 3)
            engine.store([20])
            store.fault = ""
            until(lambda: served.asking.get("/drop")["done"], "the end", 20.0)
            assert served.asking.get("/drop")["remote"] == 3
            assert other.lookup(range(3)) == [MISS] * 3


@pytest.mark.parametrize("more", [ALONE, BUNDLES], ids=["alone", "bundles"])
@pytest.mark.parametrize("all", [True, False], ids=["all", "some"])
def test_what_is_being_sent_is_dropped_too(tmp_path: Path, store: S3, more: str, all: bool) -> None:
    text = s3(tmp_path, store, more).replace("timeout 1s", "timeout 20s")
    with Served(tmp_path, text) as served, Engine(served.socket) as engine:
        engine.up().store([9])
        until(lambda: served.tier("remote")["blocks"] == 1, "one", 20.0)
        store.fault = "held"
        engine.store(range(4))
        until(lambda: store.held_up >= 1, "that they are being sent", 10.0)
        what = ("--all",) if all else keys(engine, *range(4))
        drop(served, fingerprint(engine), *what, "--no-wait")
        until(lambda: engine.lookup(range(4)) == [MISS] * 4, "that the disk has them no more")
        store.fault = ""
        until(lambda: served.tier("remote")["sent"] > 1, "that they were sent", 20.0)
        until(lambda: served.asking.get("/drop")["done"], "the end", 20.0)
        assert served.asking.get("/drop")["why"] == ""
        assert len(store.blocks()) == (0 if all else 1)
        assert engine.lookup(range(4)) == [MISS] * 4


def test_a_deletion_that_fails_is_tried_again(tmp_path: Path, store: S3) -> None:
    """One that an engine asked for: nobody else would see it."""
    with Served(tmp_path, s3(tmp_path, store)) as served, Engine(served.socket) as engine:
        engine.up().store(range(2))
        until(lambda: len(store.blocks()) == 2, "the sends", 20.0)
        until(lambda: served.tier("remote")["blocks"] == 2, "that they are known")
        store.fault = "503"
        assert engine.client.drop([name(0)]) == 1
        until(lambda: served.tier("remote")["breaker_opened"] >= 1, "the failures", 20.0)
        store.fault = ""
        until(lambda: len(store.blocks()) == 1, "the deletion", 20.0)


@pytest.mark.parametrize("more", [ALONE, BUNDLES], ids=["alone", "bundles"])
def test_what_another_daemon_deleted_is_no_hit_for_long(
    two: Two, tmp_path: Path, more: str
) -> None:
    """By the next listing, without a load that fails."""
    _, engine, knows, other = two(more)
    drop_of = ("drop", "--admin", f"unix:{tmp_path}/one/run/kvbm-admin.sock")
    assert command(*drop_of, "--all").returncode == 0
    until(lambda: other.lookup(range(9)) == [MISS] * 9, "that they are gone", 20.0)
    assert listed(knows) == {}
    assert (knows.tier("remote")["absent"], knows.tier("remote")["unlisted"]) == (0, 9)
    engine.store([3])
    until(lambda: other.lookup([3]) == [REMOTE], "it again", 20.0)
    assert other.load([3]).ok
