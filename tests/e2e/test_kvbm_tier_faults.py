"""The same damage to kvbm and to vLLM's own file tier, and stores in trouble: never wrong bytes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.tiered import MISS, PYTHON, RIGHT, WRONG, Program, Tiered, ours
from harness.blocks import BLOCK, payload
from harness.kvbm_daemon import DISK, Served
from harness.s3 import S3
from harness.waiting import until

PAGE = 4096
# No step of a scheduler may wait for what takes longer than this.
HANGS_S = 0.5

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="no vLLM environment; hint: tests/e2e/env.sh env"
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, DISK) as served:
        yield served


def place(root: Path, block: int) -> tuple[Path, int]:
    """The file with a block's bytes in it, and where they begin."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and (at := path.read_bytes().find(payload(block))) >= 0:
            return path, at
    raise AssertionError(f"block {block} is in no file")


def flip(root: Path) -> None:
    path, at = place(root, 1)
    with path.open("r+b") as file:
        file.seek(at + BLOCK // 2)
        [byte] = file.read(1)
        file.seek(at + BLOCK // 2)
        file.write(bytes([byte ^ 1]))


def put_another(root: Path) -> None:
    """Block 2's bytes, with whatever goes with them, in the place of block 1's."""
    path, at = place(root, 1)
    other, there = place(root, 2)
    head = min(at, there, PAGE)
    data = other.read_bytes()[there - head : there + BLOCK]
    with path.open("r+b") as file:
        file.seek(at - head)
        file.write(data)


def truncate(root: Path) -> None:
    path, at = place(root, 1)
    os.truncate(path, at + BLOCK // 2)


def delete(root: Path) -> None:
    place(root, 1)[0].unlink()


# What vLLM 0.32's own file tier says afterwards; kvbm says MISS, or has the right bytes still.
FAULTS: list[tuple[Callable[[Path], None], str]] = [
    (flip, WRONG), (put_another, WRONG), (truncate, MISS), (delete, MISS),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "file_tier_says"), FAULTS, ids=lambda it: getattr(it, "__name__", "")
)
def test_damaged_files(
    program: Program, served: Served, tmp_path: Path, fault: Callable[[Path], None],
    file_tier_says: str,
) -> None:  # fmt: skip
    files = tmp_path / "files"
    with Tiered(program, {"type": "fs", "root_dir": str(files)}) as engine:
        engine.store([1, 2])
        assert engine.short([1, 2]) == [RIGHT, RIGHT]
        fault(files)
        assert engine.short([1]) == [file_tier_says]
    with Tiered(program, ours(served.socket)).up() as engine:
        engine.store([1, 2])
        assert engine.short([1, 2]) == [RIGHT, RIGHT]
        disk = tmp_path / "disk"
        fault(disk)
        [found] = engine.ask([1])
        # A segment that was deleted can still be read while the daemon has it open.
        assert found.short == (RIGHT if fault is delete else MISS)
        # It is known not to be there then, and can be stored anew.
        if fault is not delete:
            engine.store([1])
            assert engine.short([1]) == [RIGHT]
            assert served.tier("disk")["corrupt"] >= (fault is not truncate)
        served.end()
        if fault is delete:
            served.start()
            assert engine.short([1]) == [MISS]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(path)], capture_output=True
    )
    if made.returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_costs_stores_only(program: Program, tmp_path: Path, small_disk: Path) -> None:
    text = f"disk {{ path {small_disk}/kv; size 64m; segment 1m; sync 50ms; }}\n"
    with Served(tmp_path, text) as served, Tiered(program, ours(served.socket)).up() as engine:
        blocks = range(150)
        engine.store(blocks)
        said = engine.short(blocks)
        assert set(said) == {RIGHT, MISS}, said
        assert engine.slowest_s < HANGS_S
        assert served.asking.get("/health")["running"]


def test_a_disk_that_fails_costs_stores_only(program: Program, tmp_path: Path) -> None:
    with Served(tmp_path, DISK) as served, Tiered(program, ours(served.socket)).up() as engine:
        engine.store([1])
        served.end()
        served.environment["KVBM_TEST_POINTS"] = "journal.write=5"  # EIO
        served.start()
        until(lambda: engine.short([1]) == [RIGHT], "the block", 10.0)
        engine.store([2])
        until(lambda: served.status()["state"] == "degraded", "that it is seen", 10.0)
        assert "Input/output error" in served.tier("disk")["trouble"]
        engine.store([3])
        assert engine.short([1, 3]) == [RIGHT, MISS]


def test_a_store_that_is_slow_or_dead_costs_its_own_blocks(
    program: Program, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("any\n")
    with S3() as s3, Served(tmp_path, DISK + s3.tier) as served:
        tier = ours(served.socket, load_s=0.4)
        with Tiered(program, tier).up() as engine:
            engine.store(range(6))
            until(lambda: served.tier("remote")["sent"] == 6, "the sends", 10.0)
        served.end()
        shutil.rmtree(tmp_path / "disk")
        served.start()
        with Tiered(program, tier).up() as engine:
            until(lambda: engine.short([0]) == [RIGHT], "what was sent", 10.0)
            engine.store([10])
            s3.fault = "hang"
            found = engine.ask([1, 2, 10])
            assert [one.short for one in found] == [MISS, MISS, RIGHT]
            assert engine.slowest_s < HANGS_S
            for fault, block in (("reset", 3), ("wrong", 4), ("half", 5)):
                s3.fault = fault
                assert engine.short([block, 10]) == [MISS, RIGHT], fault


def damage(root: Path, dice: random.Random) -> None:
    """Some bytes of some segment, headers and payloads alike."""
    segments = sorted(root.rglob("segment-*"))
    path = dice.choice(segments)
    with path.open("r+b") as file:
        for _ in range(40):
            file.seek(dice.randrange(PAGE, path.stat().st_size))
            file.write(dice.randbytes(3))


def test_whatever_happens_nothing_wrong_comes_back(program: Program, tmp_path: Path) -> None:
    dice, said = random.Random(11), []
    text = "disk { path disk; size 8m; segment 1m; sync 50ms; }\n"
    with Served(tmp_path, text) as served:
        for _ in range(3):
            with Tiered(program, ours(served.socket, load_s=1.0, store_s=5.0)).up() as engine:
                for _ in range(4):
                    engine.store(dice.sample(range(160), 6))
                    said += engine.short(dice.sample(range(160), 12))
                    damage(tmp_path, dice)
                    said += engine.short(dice.sample(range(160), 12))
                served.send(signal.SIGSTOP)
                said += engine.short(range(4))
                served.send(signal.SIGCONT)
                served.end(signal.SIGKILL)
                engine.store(range(4))
                served.start()
                engine.up()
                said += engine.short(range(160))
    assert set(said) == {RIGHT, MISS}
    assert said.count(RIGHT) > 30, "that there is something to be wrong about"
