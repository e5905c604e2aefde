"""`kvgate sim`: command line of the simulated engine; names and defaults follow `vllm serve`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import uvloop

from .faults import Fault, FaultError
from .model import PROFILES, profile
from .server import Server
from .settings import EventSettings, Lora, Settings, TransferSettings
from .vocabulary import OWN, Vocabulary

EXIT_BIND, EXIT_DIED = 3, 1


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as exc:
        raise argparse.ArgumentTypeError(f"not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="kvgate sim", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs a simulated vLLM server: no model, no accelerator, vLLM's interfaces.",
        epilog=f"profiles: {', '.join(PROFILES)}, fixed:MS (every step takes MS milliseconds); "
               "constants in ms may follow: h100-8b-tp1,b=0.04")
    p.add_argument("model", nargs="?", default="sim", help="model name (default: sim)")
    net = p.add_argument_group("server")
    net.add_argument("--served-model-name", nargs="+", metavar="NAME")
    net.add_argument("--host", default="127.0.0.1")
    net.add_argument("--port", type=int, default=8000, help="0 = one the system chooses")
    net.add_argument("--uds", metavar="PATH", help="listen on a unix socket instead")
    net.add_argument("--ssl-certfile", metavar="FILE")
    net.add_argument("--ssl-keyfile", metavar="FILE")
    net.add_argument("--api-key", nargs="+", default=[], metavar="KEY")
    net.add_argument("--keepalive", type=float, default=5.0, metavar="S")
    net.add_argument("--ready-delay", type=float, default=0.0, metavar="S")
    net.add_argument("--enable-request-id-headers", action="store_true")
    net.add_argument("--enable-prompt-tokens-details", action="store_true")
    net.add_argument("--enable-server-load-tracking", action="store_true")
    eng = p.add_argument_group("engine")
    eng.add_argument("--lora-modules", nargs="+", default=[], metavar="NAME=PATH")
    eng.add_argument("--profile", default="zero", metavar="NAME", help="step-time model")
    eng.add_argument("--time-scale", type=float, default=1.0, metavar="K",
                     help="simulated seconds take K real ones (0.1 = ten times faster)")
    eng.add_argument("--block-size", type=int, default=16)
    eng.add_argument("--num-gpu-blocks", type=int, metavar="N", help="cache size in blocks")
    eng.add_argument("--kv-tokens", type=int, metavar="N", help="cache size in tokens")
    eng.add_argument("--kv-bytes-per-token", type=int, metavar="N")
    eng.add_argument("--max-model-len", type=int, default=32_768)
    eng.add_argument("--max-num-seqs", type=int)
    eng.add_argument("--max-num-batched-tokens", type=int)
    eng.add_argument("--data-parallel-size", type=int, default=1)
    eng.add_argument("--seed", type=int, default=0)
    eng.add_argument("--tokenizer", metavar="FOLDER",
                     help="make token ids as this model does; default: a scheme of its own")
    eng.add_argument("--chat-template", metavar="FILE", help="in place of the tokenizer's own")
    eng.add_argument("--tokens", type=int, default=16, metavar="N",
                     help="tokens of a reply, its end included, when nothing else ends it")
    eng.add_argument("--reasoning-tokens", type=int, default=0, metavar="N",
                     help="the first N tokens of a chat reply are reasoning")
    kv = p.add_argument_group("KV events and hand-over")
    kv.add_argument("--kv-events-config", type=_json_object, default={}, metavar="JSON")
    kv.add_argument("--kv-events-bytes-hashes", action="store_true",
                    help="block hashes as 32 bytes, as VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0")
    kv.add_argument("--kv-events-arrays", action="store_true",
                    help="events as arrays, as older versions send them")
    kv.add_argument("--kv-transfer-config", type=_json_object, metavar="JSON")
    kv.add_argument("--link-gb-s", type=float, metavar="GB/S",
                    help="bandwidth of this engine's link for transfers; 0 = no transfer time")
    kv.add_argument("--side-channel-port", type=int, metavar="PORT",
                    help="default: $VLLM_NIXL_SIDE_CHANNEL_PORT, else one the system chooses")
    test = p.add_argument_group("test instrument")
    test.add_argument("--fault", action="append", default=[], metavar="SPEC",
                      help="scripted fault, e.g. cut:after=3,times=1 (see engines/sim/faults.py)")
    test.add_argument("--record", action="store_true", help="keep the last request for /sim/state")
    test.add_argument("--fragile", action="store_true",
                      help="die, as vLLM does, of kv_transfer_params that lack fields")
    return p


def settings(argv: Sequence[str]) -> Settings:
    """Raises SystemExit 2 with a message on bad usage."""
    p = parser()
    a = p.parse_args(argv)
    try:
        return _settings(a)
    except (ValueError, FaultError) as exc:
        p.error(str(exc))


def _settings(a: argparse.Namespace) -> Settings:
    prof = profile(a.profile)
    if a.kv_bytes_per_token is not None:
        prof = replace(prof, kv_bytes_per_token=a.kv_bytes_per_token)
    if a.link_gb_s is not None:
        prof = replace(prof, link_gb_s=a.link_gb_s)
    for name in ("block_size", "max_model_len", "data_parallel_size", "tokens"):
        if getattr(a, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    if a.time_scale < 0:
        raise ValueError("--time-scale must not be negative")
    blocks = a.num_gpu_blocks
    if blocks is None:
        blocks = (a.kv_tokens or prof.kv_tokens) // a.block_size + 1
    if blocks < 3:
        raise ValueError("the KV cache must hold at least 2 blocks")
    for spec in a.fault:
        Fault.parse(spec)
    transfer = None
    if a.kv_transfer_config is not None:
        port = a.side_channel_port
        if port is None:
            port = int(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "0"))
        host = os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", a.host)
        transfer = TransferSettings.parse(a.kv_transfer_config, host, port)
    return Settings(
        model=a.model, served_model_names=tuple(a.served_model_name or [a.model]),
        loras=_loras(a.lora_modules), host=a.host,
        port=a.port, uds=a.uds, ssl_certfile=a.ssl_certfile, ssl_keyfile=a.ssl_keyfile,
        api_keys=tuple(a.api_key), keepalive_s=a.keepalive, ready_delay_s=a.ready_delay,
        profile=prof, time_scale=a.time_scale, seed=a.seed, block_size=a.block_size,
        num_gpu_blocks=blocks, max_model_len=min(a.max_model_len, (blocks - 1) * a.block_size),
        max_num_seqs=a.max_num_seqs or prof.max_num_seqs,
        max_num_batched_tokens=a.max_num_batched_tokens or prof.max_num_batched_tokens,
        tokens=a.tokens, reasoning_tokens=a.reasoning_tokens,
        data_parallel_size=a.data_parallel_size,
        enable_prompt_tokens_details=a.enable_prompt_tokens_details,
        enable_request_id_headers=a.enable_request_id_headers,
        enable_server_load_tracking=a.enable_server_load_tracking,
        events=replace(EventSettings.parse(a.kv_events_config), arrays=a.kv_events_arrays,
                       bytes_hashes=a.kv_events_bytes_hashes),
        transfer=transfer, fragile=a.fragile,
        faults=tuple(a.fault), record=a.record,
        vocabulary=_vocabulary(a.tokenizer, a.chat_template or ""),
    )


def _vocabulary(folder: str | None, chat_template: str) -> Vocabulary:
    if not folder:
        return OWN
    from .model_folder import Folder

    return Folder(folder, chat_template)


def _loras(specs: Sequence[str]) -> tuple[Lora, ...]:
    loras = []
    for at, spec in enumerate(specs, 1):
        name, equals, path = spec.partition("=")
        if not (name and equals and path):
            raise ValueError(f"--lora-modules needs NAME=PATH, got `{spec}`")
        loras.append(Lora(name, path, at))
    return tuple(loras)


async def _serve(config: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stop.set)
    server = Server(config)
    try:
        await server.start()
    except OSError as exc:
        where = config.uds or f"{config.host}:{config.port}"
        print(f"kvgate sim: cannot listen on {where}: {exc.strerror or exc}", file=sys.stderr)
        await server.engine.stop()
        return EXIT_BIND
    print(f"ready {server.url}", flush=True)
    waits = [loop.create_task(stop.wait()), loop.create_task(server.engine.ended.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await server.stop()
    return 0 if stop.is_set() else EXIT_DIED


def main(argv: Sequence[str] | None = None) -> int:
    config = settings(sys.argv[1:] if argv is None else argv)
    return uvloop.run(_serve(config))
