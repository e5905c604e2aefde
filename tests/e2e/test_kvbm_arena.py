"""Stock vLLM on the CPU whose host tier is kvbm's arena: two engines share it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import fleet
from e2e.kvbm_vllm import BLOCK, HOST, LOADABLE, Answer, Vllm, prompt, with_object_store
from harness.kvbm_daemon import Served
from harness.waiting import until

from kvbm import engine_config

pytestmark = pytest.mark.skipif(
    fleet.KIND == "sim" or not fleet.VLLM.exists(), reason="needs stock vLLM; hint: env.sh"
)

CHUNKS = LOADABLE // BLOCK
# The prompt and the two that push it out of an engine: the arena holds not even one of those.
ARENA = 6 << 20
CONFIG = f"host {{ size {ARENA}; }}\ndisk {{ path disk; size 256m; segment 4m; sync 50ms; }}\n"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with with_object_store(tmp_path_factory.mktemp("kvbm"), CONFIG) as daemon:
        yield daemon


def arena(daemon: Served) -> dict[str, Any]:
    """Way 3, patient: stores are counted here, on a machine that is busy with the model."""
    transfer = engine_config.arena(daemon.socket)
    transfer["kv_connector_extra_config"]["patience_ms"] = 500
    return transfer


@pytest.fixture(scope="module")
def vllm(daemon: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    vllm = Vllm(arena(daemon), tmp_path_factory.mktemp("vllm"))
    try:
        vllm.start()
        yield vllm
    finally:
        vllm.engine.server.stop()


def nobody_holds(daemon: Served) -> None:
    until(lambda: daemon.tier("host")["held"] == 0, "no block held", 10.0)


def test_a_prompt_comes_back_from_every_tier(vllm: Vllm, daemon: Served) -> None:
    tokens = prompt(1)
    cold = vllm.ask(tokens)
    assert cold.loaded == 0
    until(lambda: daemon.tier("host")["blocks"] >= CHUNKS, "the blocks in the arena", 20.0)
    vllm.restart()
    assert vllm.ask(tokens) == Answer(cold.tokens, LOADABLE), "from the arena"

    until(lambda: daemon.tier("disk")["blocks"] >= CHUNKS, "the blocks on disk", 20.0)
    vllm.push_out()
    assert vllm.ask(tokens) == Answer(cold.tokens, LOADABLE), "from the disk"

    daemon.end(signal.SIGKILL)
    vllm.push_out()
    assert vllm.ask(tokens) == Answer(cold.tokens, 0), "without the daemon"
    daemon.start()
    vllm.comes_back(tokens, cold.tokens)
    nobody_holds(daemon)


def test_another_engine_shares_the_arena(vllm: Vllm, daemon: Served, tmp_path: Path) -> None:
    tokens = prompt(3)
    before = daemon.tier("host")["committed"]
    known = vllm.ask(tokens)
    until(lambda: daemon.tier("host")["committed"] >= before + CHUNKS, "the arena", 20.0)
    nobody_holds(daemon)
    # With tiers below vLLM's own host memory, too: rows are the same.
    kinds = (arena(daemon), engine_config.connector(daemon.socket, HOST))
    for kind in kinds:
        other = Vllm(kind, tmp_path)
        try:
            other.start()
            assert other.ask(tokens) == Answer(known.tokens, LOADABLE)
        finally:
            other.engine.server.stop()
    nobody_holds(daemon)


def test_a_lost_disk_comes_back_from_the_object_store(vllm: Vllm, daemon: Served) -> None:
    tokens = prompt(1)
    known = vllm.ask(tokens)
    until(
        lambda: daemon.tier("remote")["blocks"] >= daemon.tier("disk")["blocks"] >= CHUNKS,
        "the sends",
        60.0,
    )
    blocks = daemon.tier("disk")["blocks"]
    daemon.end()
    shutil.rmtree(daemon.root / "disk")
    daemon.start()
    until(lambda: daemon.tier("remote")["blocks"] >= blocks, "what is in the store", 20.0)
    vllm.comes_back(tokens, known.tokens)
    assert daemon.tier("remote")["fetched"] >= CHUNKS
