"""Stock vLLM's real tiering manager on kvbm, and on vLLM's own file tier beside it, with faults."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.tiered import CHUNKS, PYTHON, Program, Refused, Tiered
from harness.blocks import BLOCK, payload
from harness.kvbm_daemon import DISK, Served
from harness.s3 import S3
from harness.waiting import until

from kvbm import engine_config

PAGE = 4096
# No step of a scheduler may wait for what takes longer than this.
HANGS_S = 0.5
RIGHT, WRONG, MISS = "right", "WRONG BYTES", "MISS"

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="no vLLM environment; hint: tests/e2e/env.sh env"
)


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with Program() as program:
        yield program


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, DISK) as served:
        yield served


def ours(socket: str, **more: object) -> dict[str, object]:
    """The tier as `kvbm doctor` prints it."""
    [tier] = engine_config.tier(socket)["kv_connector_extra_config"]["secondary_tiers"]
    return {**tier, **more}


def test_blocks_that_left_host_memory_come_back(program: Program, served: Served) -> None:
    blocks = range(3 * CHUNKS)
    with Tiered(program, ours(served.socket)).up() as engine:
        engine.store(blocks)
        found = engine.ask([*reversed(blocks), 999])
        assert [one.short for one in found] == [RIGHT] * len(blocks) + [MISS]
        stats = engine.stats()
        assert stats["kv_offload_tiering_chunk_hits"] == len(blocks)
        moved = len(blocks) * BLOCK
        assert stats["kv_offload_tiering_read_bytes"] == moved
        assert stats["kv_offload_tiering_write_bytes"] == moved
        for what in ("stored", "loaded"):
            assert stats[f"kv_offload_kvbm_{what}_blocks"] == len(blocks)
        assert "kv_offload_kvbm_loaded_blocks" not in engine.stats()
    with Tiered(program, ours(served.socket)).up() as engine:
        assert engine.short(blocks) == [RIGHT] * len(blocks), "after a restart of the engine"
        for number in (signal.SIGTERM, signal.SIGKILL):
            served.end(number)
            assert engine.short([0, 1]) == [MISS, MISS]
            served.start()
            engine.up()
            assert engine.short(blocks) == [RIGHT] * len(blocks)


def test_engines_share_what_is_interchangeable_and_nothing_else(
    program: Program, served: Served
) -> None:
    tier = ours(served.socket)
    with Tiered(program, tier).up() as engine, Tiered(program, tier).up() as equal:
        engine.store([1])
        assert equal.short([1]) == [RIGHT]
    for other in ({"model": "m/y"}, {"dtype": "fp8"}, {"tp": 2}, {"bytes": 2 * BLOCK}):
        with Tiered(program, tier, **other).up() as stranger:
            assert stranger.short([1]) == [MISS], other
    for more in ({"salt": "tenant"}, {"weights": "revision 2"}):
        with Tiered(program, {**tier, **more}).up() as stranger:
            assert stranger.short([1]) == [MISS], more
    program.order("", "seed", text="17")
    try:
        with Tiered(program, tier).up() as stranger:
            assert stranger.short([1]) == [MISS]
        assert served.status()["counters"]["probe_differs"] >= 1
    finally:
        program.order("", "seed", text="")


def test_a_request_can_say_which_tiers_it_wants(program: Program, served: Served) -> None:
    with Tiered(program, ours(served.socket)).up() as engine:
        engine.store([1])
        for wanted in (["CPU", "LOCAL"], ["STORAGE", "REMOTE"]):
            assert engine.short([1], [wanted]) == [MISS], wanted
        assert engine.short([1], [["STORAGE", "LOCAL"]]) == [RIGHT]


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
    with S3() as s3:
        text = (
            f"{DISK}\nremote {{ url s3://bucket/p; endpoint {s3.url}; access_key a;"
            " secret_key file:key; upload all; refresh 1s; breaker 50 pause=300ms; timeout 15s; }\n"
        )
        with Served(tmp_path, text) as served:
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


def test_a_daemon_that_hangs_or_is_not_there_costs_misses(
    program: Program, served: Served, tmp_path: Path
) -> None:
    with Tiered(program, ours(served.socket, load_s=0.3, store_s=0.3)).up() as engine:
        engine.store([1, 2])
        served.send(signal.SIGSTOP)
        try:
            assert engine.short([1, 2]) == [MISS, MISS]
            assert engine.slowest_s < HANGS_S
            engine.store(range(10, 10 + CHUNKS))
        finally:
            served.send(signal.SIGCONT)
        until(lambda: engine.short([2]) == [RIGHT], "the daemon again", 20.0)
    with Tiered(program, ours(str(tmp_path / "nobody.sock"))) as engine:
        engine.store([1])
        assert engine.stats()["kv_offload_kvbm_shed_blocks"] == 1
        assert engine.short([1]) == [MISS]
        assert engine.idle(200) < 0.02


def test_what_cannot_work_is_said_at_the_start(program: Program, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="unknown option `sokcet`"):
        Tiered(program, {**ours("x"), "sokcet": "y"})
    with pytest.raises(Refused, match="`load_s` in secondary_tiers is a number"):
        Tiered(program, ours("x", load_s="2"))
    with pytest.raises(Refused, match="socket_token"):
        Tiered(program, ours("x", socket_token=f"file:{tmp_path}/none"))


def test_the_cpu_worker_copies_what_it_should(program: Program) -> None:
    program.order("", "copies")


def test_the_connector_fills_in_what_vllm_needs(program: Program) -> None:
    said = engine_config.connector("/s", 5 << 20)["kv_connector_extra_config"]
    answer = program.order("", "connector", said={**said, "salt": "t", "block_size": 64})
    extra = answer["extra"]
    assert (answer["spec"], extra["cpu_bytes_to_use"], extra["block_size"]) == (
        "KvbmHostSpec", 5 << 20, 64,
    )  # fmt: skip
    assert extra["secondary_tiers"] == [ours("/s", salt="t")]
    assert "vllm:kv_offload_kvbm_failed_blocks" in answer["metrics"]
