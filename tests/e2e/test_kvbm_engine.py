"""Stock vLLM on the CPU with kvbm's connector: a prompt that left the engine comes back."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from e2e import fleet
from harness.gateway import ROOT, free_ports
from harness.kvbm_daemon import Served
from harness.seaweed import BUCKET, Seaweed
from harness.waiting import until

from engines.vllm.launch import ChildServer
from engines.vllm.spec import Cpu, EngineSpec, command
from engines.vllm.transfer import Nixl
from kvbm import engine_config

pytestmark = pytest.mark.skipif(
    fleet.KIND == "sim" or not fleet.VLLM.exists(), reason="needs stock vLLM; hint: env.sh"
)

MODEL = "tiny"
WEIGHTS = fleet.CACHE / "tiny-llama"
BLOCK, TOKEN_BYTES = 32, 1024  # of the tiny model
LENGTH = 2000
# Of the prompt's tokens, those in whole blocks that can be loaded: one is always computed.
LOADABLE = (LENGTH - 1) // BLOCK * BLOCK
DEVICE, HOST = 4224 * TOKEN_BYTES, 128 * BLOCK * TOKEN_BYTES
DISK = "disk { path disk; size 256m; segment 4m; sync 50ms; }\n"


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(100, 40_000) for _ in range(length)]


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: tuple[int, ...]
    loaded: int  # prompt tokens whose KV came from kvbm


class Vllm:
    """An engine with kvbm's connector, or `with_nixl`: with NIXL's and kvbm's."""

    def __init__(self, socket: str, folder: Path, *, with_nixl: bool = False) -> None:
        port, side = free_ports(2)
        transfer = engine_config.connector(socket, HOST)
        spec = EngineSpec(
            model=str(WEIGHTS),
            served_names=(MODEL,),
            port=port,
            block_size=BLOCK,
            max_model_len=4096,
            dtype="float32",
            cpu=Cpu(kv_bytes=DEVICE),
            offline=True,
            nixl=Nixl(port=side, buffer_device="cpu", ucx_tls="tcp,sm,self", ucx_devices="lo")
            if with_nixl
            else None,
            executable=str(fleet.VLLM),
        )
        built = command(spec)
        argv = list(built.argv)
        if with_nixl:
            at = argv.index("--kv-transfer-config")
            nixl = json.loads(argv[at + 1])
            del argv[at : at + 2]
            transfer = {
                "kv_connector": "MultiConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"connectors": [nixl, transfer]},
            }
        built = replace(
            built,
            argv=(*argv, "--kv-transfer-config", json.dumps(transfer)),
            environ=(*built.environ, ("PYTHONPATH", str(ROOT))),
        )
        log = folder / f"engine-{port}.log"
        self.engine = fleet.Engine(
            port, lambda: ChildServer.start(built, f"http://127.0.0.1:{port}", log)
        )

    def start(self) -> None:
        self.engine.launch()
        self.engine.server.wait_ready()

    def restart(self) -> None:
        self.engine.server.kill()
        self.start()

    def loaded(self) -> int:
        source = "external_kv_transfer"
        return int(self.engine.counter("vllm:prompt_tokens_by_source_total", source=source))

    def ask(self, tokens: list[int], length: int = 16) -> Answer:
        before = self.loaded()
        body = {
            "model": MODEL, "prompt": tokens, "max_tokens": length, "temperature": 0,
            "return_token_ids": True,
        }  # fmt: skip
        url = f"{self.engine.base_url}/v1/completions"
        reply = httpx.post(url, json=body, timeout=120)
        assert reply.status_code == 200, reply.text
        said = tuple(reply.json()["choices"][0]["token_ids"])
        return Answer(said, self.loaded() - before)

    def push_out(self) -> None:
        """Other prompts take every block of the device and of the host memory."""
        for seed in (98, 99):
            self.ask(prompt(seed, 4000), 1)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("kvbm")
    (root / "key").write_text("any\n")
    with Seaweed(tmp_path_factory.mktemp("weed")) as weed:
        keys = "access_key file:key; secret_key file:key;"
        remote = f"url s3://{BUCKET}/kv; endpoint {weed.url}; {keys} upload all; refresh 1s;"
        with Served(root, f"{DISK}remote {{ {remote} }}\n") as daemon:
            yield daemon


@pytest.fixture(scope="module")
def vllm(daemon: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    vllm = Vllm(daemon.socket, tmp_path_factory.mktemp("vllm"))
    before = host_memories()
    try:
        vllm.start()
        yield vllm
    finally:
        vllm.engine.server.stop()
    assert host_memories() == before, "engines left their host memory behind"


def host_memories() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("vllm_offload_*")}


def comes_back(vllm: Vllm, tokens: list[int], said: tuple[int, ...]) -> None:
    """Whole, once the engine has found the daemon again."""

    def loaded() -> bool:
        vllm.push_out()
        answer = vllm.ask(tokens)
        assert answer.tokens == said
        return answer.loaded == LOADABLE

    until(loaded, "the prompt from kvbm", 30.0)


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
    comes_back(vllm, tokens, cold.tokens)


def test_another_engine_finds_it_beside_nixl(vllm: Vllm, daemon: Served, tmp_path: Path) -> None:
    tokens = prompt(1)
    known = vllm.ask(tokens)
    other = Vllm(daemon.socket, tmp_path, with_nixl=True)
    try:
        other.start()
        assert other.ask(tokens) == Answer(known.tokens, LOADABLE)
    finally:
        other.engine.server.stop()


def test_a_lost_disk_comes_back_from_the_object_store(vllm: Vllm, daemon: Served) -> None:
    tokens = prompt(1)
    known = vllm.ask(tokens)
    blocks = daemon.tier("disk")["blocks"]
    until(lambda: daemon.tier("remote")["sent"] + daemon.tier("remote")["blocks"] >= blocks,
          "the sends", 60.0)  # fmt: skip
    daemon.end()
    shutil.rmtree(daemon.root / "disk")
    daemon.start()
    until(lambda: daemon.tier("remote")["blocks"] >= blocks, "what is in the store", 20.0)
    comes_back(vllm, tokens, known.tokens)
    assert daemon.tier("remote")["fetched"] >= LOADABLE // BLOCK


def test_damaged_blocks_are_computed(vllm: Vllm, daemon: Served) -> None:
    tokens = prompt(2)
    cold = vllm.ask(tokens)
    until(lambda: daemon.tier("disk")["blocks"] >= 2 * LOADABLE // BLOCK, "the stores", 20.0)
    vllm.push_out()
    daemon.end()  # Not from the object store either.
    daemon.file.write_text(daemon.file.read_text().partition("remote {")[0])
    daemon.start()
    comes_back(vllm, tokens, cold.tokens)
    vllm.push_out()
    for path in (daemon.root / "disk" / "kvbm-v1").glob("segment-*"):
        with path.open("r+b") as file:
            for at in range(4096 + 2048, path.stat().st_size, 4096):
                file.seek(at)
                file.write(b"damaged!")
    assert vllm.ask(tokens) == Answer(cold.tokens, 0)
    assert daemon.tier("disk")["corrupt"] > 0
