"""Stock vLLM on the CPU with a way into kvbm, and prompts whose loadable part is known."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from e2e import fleet
from harness.gateway import ROOT, free_ports
from harness.kvbm_daemon import Served
from harness.seaweed import BUCKET, Seaweed
from harness.waiting import until

from engines.vllm.launch import ChildServer
from engines.vllm.spec import Cpu, EngineSpec, KvEvents, command
from engines.vllm.transfer import Nixl

MODEL = "tiny"
WEIGHTS = fleet.CACHE / "tiny-llama"
BLOCK, TOKEN_BYTES = 32, 1024  # of the tiny model
LENGTH = 2000
# Of the prompt's tokens, those in whole blocks that can be loaded: one is always computed.
LOADABLE = (LENGTH - 1) // BLOCK * BLOCK
DEVICE, HOST = 4224 * TOKEN_BYTES, 128 * BLOCK * TOKEN_BYTES


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(100, 40_000) for _ in range(length)]


@contextmanager
def with_object_store(folder: Path, config: str) -> Iterator[Served]:
    """A daemon of this configuration that also keeps everything in SeaweedFS."""
    (folder / "key").write_text("any\n")
    (folder / "weed").mkdir()
    with Seaweed(folder / "weed") as weed:
        keys = "access_key file:key; secret_key file:key;"
        remote = f"url s3://{BUCKET}/kv; endpoint {weed.url}; {keys} upload all; refresh 1s;"
        with Served(folder, f"{config}remote {{ {remote} }}\n") as daemon:
            yield daemon


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: tuple[int, ...]
    loaded: int  # prompt tokens whose KV came from kvbm


class Vllm:
    """An engine with kvbm's way in, or `with_nixl`: with NIXL's connector and kvbm's.

    `transfer` is the option as `kvbm doctor` prints it. Computing is said to take so long that what
    is found is loaded: these tests count blocks. `with_events`: it publishes its KV events.
    """

    def __init__(
        self,
        transfer: dict[str, Any],
        folder: Path,
        *,
        with_nixl: bool = False,
        with_events: bool = False,
    ) -> None:
        port, side, events, replay = free_ports(4)
        transfer["kv_connector_extra_config"].setdefault("recompute_us_per_token", 1e6)
        spec = EngineSpec(
            model=str(WEIGHTS),
            served_names=(MODEL,),
            port=port,
            block_size=BLOCK,
            max_model_len=4096,
            dtype="float32",
            cpu=Cpu(kv_bytes=DEVICE),
            offline=True,
            events=KvEvents(f"tcp://*:{events}", f"tcp://*:{replay}") if with_events else None,
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

    def comes_back(self, tokens: list[int], said: tuple[int, ...]) -> None:
        """A prompt from kvbm, whole, once the engine has found the daemon again."""

        def loaded() -> bool:
            self.push_out()
            answer = self.ask(tokens)
            assert answer.tokens == said
            return answer.loaded == LOADABLE

        until(loaded, "the prompt from kvbm", 30.0)
