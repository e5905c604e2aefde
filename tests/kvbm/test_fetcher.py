"""The native fetcher against a directory and against a store with faults."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.blocks import BLOCK, Engine, name
from harness.object_store import Objects
from harness.s3 import ENDLESS, HANG_S, S3
from harness.waiting import until

from kvbm.remote import layout
from native import _core

FAILED, ABSENT, DAMAGED = 16, 1, 17
Ended = tuple[float, str | None, str | None]


class Setup:
    """An engine, and a core that knows of `count` blocks in a store; `put` has been given each of
    their objects. What it has fetched it keeps in memory, or on a `disk`.
    """

    def __init__(
        self, root: Path, count: int, put: Callable[[str, bytes], object], disk: bool = False
    ) -> None:
        kept = [_core.KvbmDisk(str(root / at), 64 << 20, segment_bytes=1 << 20) for at in "ab"]
        sender = _core.KvbmCore(str(root / "s"), disk=kept[0], remote_blocks=100, upload="all")
        objects = Objects(sender)
        with Engine(str(root / "s")) as engine:
            engine.up().store(range(count))
            until(lambda: (objects.serve(), len(objects.held) == count)[1], "the sends")
        sender.stop()
        there = str(root / "t")
        if disk:
            self.core = _core.KvbmCore(there, disk=kept[1], remote_blocks=100)
        else:
            self.core = _core.KvbmCore(there, host_bytes=1 << 22, remote_blocks=100)
        self.door = self.core.remote()
        self.engine = Engine(str(root / "t")).up()
        fingerprint = self.engine.client.fingerprint
        assert fingerprint is not None
        keys = self.engine.client.keys([name(n) for n in range(count)])
        self.fingerprint, self.keys = fingerprint, keys
        self.paths = [layout.block(fingerprint, key) for key in keys]
        for path, key in zip(self.paths, keys, strict=True):
            put(path, objects.held[fingerprint, key])
        assert self.door.known(fingerprint, keys) == count

    def begin(self, blocks: list[int]) -> int:
        """The job that loads them into slots 0, 1, ..."""
        job = next(self.engine.jobs)
        names, slots = [name(n) for n in blocks], list(range(len(blocks)))
        assert self.engine.client.load(job, names, slots, deadline_us=60_000_000)
        return job

    def figure(self, which: str) -> int:
        return int(self.core.stats()[which])


@contextmanager
def there(
    root: Path, count: int, put: Callable[[str, bytes], object], disk: bool = False
) -> Iterator[Setup]:
    setup = Setup(root, count, put, disk)
    with setup.engine:
        yield setup
    setup.core.stop()


def write(folder: Path, path: str, data: bytes) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)


@pytest.fixture
def s3() -> Iterator[S3]:
    with S3() as store:
        yield store


def fetcher(setup: Setup, s3: S3, timeout_s: float, concurrency: int) -> _core.KvbmFetcher:
    given = {"endpoint": s3.url, "region": "x", "access_key_id": "a", "secret_access_key": "s"}
    return setup.door.fetcher("s3://bucket/p", list(given.items()), timeout_s, concurrency)


def heard(fetches: _core.KvbmFetcher, count: int) -> list[Ended]:
    """So many reports."""
    found: list[Ended] = []

    def enough() -> bool:
        found.extend(fetches.reports(0.05) or [])
        return len(found) >= count

    until(enough, f"{count} reports")
    return found


def test_what_a_directory_has_is_verified_and_reported(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    with there(tmp_path, 4, lambda path, data: write(folder, path, data)) as setup:
        bad, gone = folder / setup.paths[1], folder / setup.paths[2]
        bad.write_bytes(bad.read_bytes()[:-1] + b"!")
        gone.unlink()
        fetches = setup.door.fetcher(f"file://{folder}", [], 5.0, 4)
        fetches.start()
        done = setup.engine.load([0, 1, 2, 3])
        assert list(done.statuses) == [0, DAMAGED, ABSENT, 0]
        assert setup.engine.holds(0, 0)
        assert setup.engine.holds(3, 3)
        reports = heard(fetches, 4)
        assert all(took_s > 0 and trouble is None for took_s, trouble, _ in reports)
        said = [damage for *_, damage in reports if damage]
        assert said == [f"1 of 1 blocks damaged and deleted: {setup.paths[1]}"]
        assert setup.figure("remote_fetches") == 4
        setup.core.stop()
        until(lambda: fetches.reports(1.0) is None, "its end, which is the core's")


def test_a_store_that_hangs_fails_in_time_and_is_told(tmp_path: Path, s3: S3) -> None:
    put: dict[str, bytes] = {}
    with there(tmp_path, 1, put.__setitem__) as setup:
        s3.fault = "hang"
        fetches = fetcher(setup, s3, 0.3, 4)
        fetches.start()
        assert list(setup.engine.load([0]).statuses) == [FAILED]
        [(took_s, trouble, damage)] = heard(fetches, 1)
        assert took_s >= 0.3
        assert trouble == "no answer within 0.3 s"
        assert damage is None
        s3.fault = ""
        s3.objects.update({f"p/{path}": data for path, data in put.items()})
        assert setup.engine.load([0]).ok
        assert heard(fetches, 1)[0][1:] == (None, None)


@pytest.mark.parametrize("fault", ["endless", "less"])
def test_a_body_of_another_length_than_announced_is_the_stores_fault(
    tmp_path: Path, s3: S3, fault: str
) -> None:
    put: dict[str, bytes] = {}
    with there(tmp_path, 1, put.__setitem__) as setup:
        s3.objects.update({f"p/{path}": data for path, data in put.items()})
        s3.fault = fault
        fetches = fetcher(setup, s3, 20.0, 2)
        fetches.start()
        assert list(setup.engine.load([0]).statuses) == [FAILED]
        [(_, trouble, damage)] = heard(fetches, 1)
        assert trouble is not None
        assert "bytes" in trouble
        assert damage is None
        assert s3.poured < ENDLESS / 2, "what nobody asked for was taken"
        s3.fault = ""
        assert setup.engine.load([0]).ok, "it was not forgotten, nor deleted"
        fetches.stop()


def test_why_a_store_gives_nothing_is_told(tmp_path: Path, s3: S3) -> None:
    """The reason stands behind names that are long."""
    with there(tmp_path, 2, lambda *_: None) as setup:
        s3.fault = "503"
        fetches = fetcher(setup, s3, 5.0, 4)
        fetches.start()
        assert list(setup.engine.load([0]).statuses) == [FAILED]
        assert "status code: 503" in str(heard(fetches, 1)[0][1])
        fetches.stop()
    (tmp_path / "nobody").mkdir()
    with there(tmp_path / "nobody", 1, lambda *_: None) as setup, socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # and does not listen
        given = {"endpoint": f"http://127.0.0.1:{sock.getsockname()[1]}", "region": "x",
                 "access_key_id": "a", "secret_access_key": "s"}  # fmt: skip
        fetches = setup.door.fetcher("s3://bucket/p", list(given.items()), 5.0, 1)
        fetches.start()
        assert list(setup.engine.load([0]).statuses) == [FAILED]
        assert "Connection refused" in str(heard(fetches, 1)[0][1])


def test_so_many_requests_at_once_and_an_end_gives_them_up(tmp_path: Path, s3: S3) -> None:
    with there(tmp_path, 6, lambda *_: None) as setup:
        s3.fault = "hang"
        fetches = fetcher(setup, s3, 60.0, 2)
        setup.begin(list(range(6)))
        fetches.start()
        until(lambda: len(s3.requests) == 2, "two requests")
        assert setup.figure("remote_queued_fetches") == 4
        began = time.monotonic()
        fetches.stop()
        assert time.monotonic() - began < HANG_S / 2
        assert fetches.reports(1.0) is None
        assert len(s3.requests) == 2


def test_what_nobody_waits_for_yet_counts_among_the_requests(tmp_path: Path, s3: S3) -> None:
    with there(tmp_path, 6, lambda *_: None, disk=True) as setup:
        s3.fault = "hang"
        setup.begin([0, 1])
        assert setup.core.hint(setup.fingerprint, setup.keys[2:], BLOCK) == 4
        until(lambda: setup.figure("remote_queued_fetches") == 6, "both kinds at the desk")
        fetches = fetcher(setup, s3, 60.0, 1)
        fetches.start()
        until(lambda: len(s3.requests) > 0, "a request")
        assert setup.figure("remote_queued_fetches") == 5
        fetches.stop()


def test_a_start_that_failed_can_be_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    with there(tmp_path, 2, lambda path, data: write(folder, path, data)) as setup:
        fetches = setup.door.fetcher(f"file://{folder}", [], 5.0, 4)
        free = os.dup(0)
        os.close(free)
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, allowed[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                fetches.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
        fetches.start()
        assert setup.engine.load([0, 1]).ok
        fetches.stop()
        assert fetches.reports(1.0), "how they ended"
        assert fetches.reports(1.0) is None, "the end"


def test_while_the_store_is_left_alone_nothing_is_asked(tmp_path: Path, s3: S3) -> None:
    with there(tmp_path, 2, lambda *_: None) as setup:
        job = setup.begin([0, 1])
        until(lambda: setup.figure("remote_queued_fetches") == 2, "them at the desk")
        setup.door.pause(True)
        fetches = fetcher(setup, s3, 60.0, 2)
        fetches.start()
        assert list(setup.engine.end_of(job).statuses) == [FAILED] * 2
        assert s3.requests == []
        fetches.stop()


@pytest.mark.parametrize(
    ("url", "setting", "said"),
    [
        ("http://host/x", "region", "http://host/x is no address of an object store"),
        ("s3://bucket", "nonsense", "nonsense"),
        ("file:///nobody/is/here", "region", "nobody/is/here"),
    ],
)
def test_what_cannot_be_a_store_is_refused(
    tmp_path: Path, url: str, setting: str, said: str
) -> None:
    core = _core.KvbmCore(str(tmp_path / "s"), host_bytes=1 << 22, remote_blocks=100)
    with pytest.raises(ValueError, match=said):
        core.remote().fetcher(url, [(setting, "x")], 1.0, 2)
    core.stop()
