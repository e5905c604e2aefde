"""Stock vLLM's real tiering manager on kvbm: what comes back, for whom, and without a daemon."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.tiered import CHUNKS, MISS, PYTHON, RIGHT, Program, Refused, Tiered, ours
from harness.blocks import BLOCK
from harness.kvbm_daemon import DISK, Served
from harness.waiting import until

from kvbm import engine_config

# No step of a scheduler may wait for what takes longer than this.
HANGS_S = 0.5

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="no vLLM environment; hint: tests/e2e/env.sh env"
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, DISK) as served:
        yield served


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
