"""Stock vLLM on the CPU with kvbm's connector: a prompt that left the engine comes back."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import fleet
from e2e.kvbm_vllm import BLOCK, HOST, LOADABLE, Answer, Vllm, prompt, with_object_store
from harness.kvbm_daemon import Served
from harness.waiting import until

from kvbm import engine_config

pytestmark = pytest.mark.skipif(
    fleet.KIND == "sim" or not fleet.VLLM.exists(), reason="needs stock vLLM; hint: env.sh"
)

DISK = "disk { path disk; size 256m; segment 4m; sync 50ms; }\n"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with with_object_store(tmp_path_factory.mktemp("kvbm"), DISK) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def vllm(daemon: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    vllm = Vllm(engine_config.connector(daemon.socket, HOST), tmp_path_factory.mktemp("vllm"))
    before = host_memories()
    try:
        vllm.start()
        yield vllm
    finally:
        vllm.engine.server.stop()
    assert host_memories() == before, "engines left their host memory behind"


def host_memories() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("vllm_offload_*")}


def test_a_prompt_comes_back_after_everything(vllm: Vllm, daemon: Served) -> None:
    tokens = prompt(1)
    cold = vllm.ask(tokens)
    assert cold.loaded == 0
    until(lambda: daemon.tier("disk")["blocks"] >= LOADABLE // BLOCK, "the stores", 20.0)

    vllm.push_out()
    pushed_out = vllm.ask(tokens)
    assert pushed_out == Answer(cold.tokens, LOADABLE), "after it was pushed out"

    vllm.restart()
    assert vllm.ask(tokens) == Answer(cold.tokens, LOADABLE), "after a restart of the engine"

    daemon.end(signal.SIGKILL)
    vllm.push_out()
    assert vllm.ask(tokens) == Answer(cold.tokens, 0), "without the daemon"
    daemon.start()
    vllm.comes_back(tokens, cold.tokens)


def test_another_engine_finds_it_beside_nixl(vllm: Vllm, daemon: Served, tmp_path: Path) -> None:
    tokens = prompt(1)
    known = vllm.ask(tokens)
    other = Vllm(engine_config.connector(daemon.socket, HOST), tmp_path, with_nixl=True)
    try:
        other.start()
        assert other.ask(tokens) == Answer(known.tokens, LOADABLE)
    finally:
        other.engine.server.stop()


def test_a_lost_disk_comes_back_from_the_object_store(vllm: Vllm, daemon: Served) -> None:
    tokens = prompt(1)
    known = vllm.ask(tokens)
    least = LOADABLE // BLOCK
    until(lambda: daemon.tier("remote")["blocks"] >= daemon.tier("disk")["blocks"] >= least,
          "the sends", 60.0)  # fmt: skip
    blocks = daemon.tier("disk")["blocks"]
    daemon.end()
    shutil.rmtree(daemon.root / "disk")
    daemon.start()
    until(lambda: daemon.tier("remote")["blocks"] >= blocks, "what is in the store", 20.0)
    vllm.comes_back(tokens, known.tokens)
    assert daemon.tier("remote")["fetched"] >= LOADABLE // BLOCK


def test_damaged_blocks_are_computed(vllm: Vllm, daemon: Served) -> None:
    tokens = prompt(2)
    cold = vllm.ask(tokens)
    until(lambda: daemon.tier("disk")["blocks"] >= 2 * LOADABLE // BLOCK, "the stores", 20.0)
    vllm.push_out()
    daemon.end()  # Not from the object store either.
    daemon.file.write_text(daemon.file.read_text().partition("remote {")[0])
    daemon.start()
    vllm.comes_back(tokens, cold.tokens)
    vllm.push_out()
    for path in (daemon.root / "disk" / "kvbm-v1").glob("segment-*"):
        with path.open("r+b") as file:
            for at in range(4096 + 2048, path.stat().st_size, 4096):
                file.seek(at)
                file.write(b"damaged!")
    assert vllm.ask(tokens) == Answer(cold.tokens, 0)
    assert daemon.tier("disk")["corrupt"] > 0
