"""`kvgate engine vllm MODEL [options]`: prints the command of a stock vLLM server, or becomes it.

Running replaces this process (exec): signals, exit status and logs are vLLM's own. Exit status
before that: 0 printed, 1 cannot run, 2 wrong usage or a spec that would not work.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from engines.vllm.check import SpecError
from engines.vllm.spec import Command, Cpu, EngineSpec, KvEvents, command
from engines.vllm.transfer import Nixl, Offload

EPILOG = """\
What comes after `--` goes to `vllm serve` as it is. The engine's API key, where it should have one,
is read from a file and handed over in the environment.

examples:
  kvgate engine vllm Qwen/Qwen3-8B --events
  kvgate engine vllm Qwen/Qwen3-8B --role prefill --nixl --port 8100 --events -- --max-num-seqs 64
  kvgate engine vllm ./SmolLM2-135M-Instruct --cpu --events --print
"""
_SIZE = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def main(argv: Sequence[str]) -> int:
    """`argv`: what follows `kvgate engine vllm`."""
    ours, extra = split(argv)
    options = _parser().parse_args(ours)
    try:
        built = command(spec_of(options, extra))
    except SpecError as error:
        for problem in error.problems:
            print(f"kvgate engine vllm: {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"kvgate engine vllm: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    if options.print:
        print(built.shell(options.api_key_file or ""))
        return 0
    return become(built)


def become(built: Command) -> int:
    """Replaces this process by the engine; returns only when that cannot be done."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(built.argv[0], built.argv, {**os.environ, **dict(built.environ)})
    except OSError as error:
        print(
            f"kvgate engine vllm: cannot run `{built.argv[0]}`: {error.strerror}\n"
            "hint: activate the environment vLLM is in, or name its program with --vllm PATH",
            file=sys.stderr,
        )
    return 1


def split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our arguments, and those after the first `--`."""
    arguments = list(argv)
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


def spec_of(options: argparse.Namespace, extra: tuple[str, ...]) -> EngineSpec:
    """Raises OSError where the key file cannot be read."""
    events = None
    if options.events is not None:
        events = KvEvents(endpoint=options.events, replay=options.replay, topic=options.topic)
    nixl = None
    if options.nixl is not None:
        nixl = Nixl(
            mode=options.nixl,
            host=options.nixl_host,
            port=options.nixl_port,
            lease_s=options.lease,
            on_load_failure=options.on_load_failure,
            engine_id=options.engine_id,
            buffer_device="cpu" if options.cpu else "",
        )
    key = Path(options.api_key_file).read_text().strip() if options.api_key_file else ""
    return EngineSpec(
        model=options.model,
        served_names=tuple(options.served_name),
        host=options.host,
        port=options.port,
        role=options.role,
        block_size=options.block_size,
        max_model_len=options.max_model_len,
        dtype=options.dtype,
        tensor_parallel=options.tp,
        data_parallel=options.dp,
        events=events,
        nixl=nixl,
        offload=Offload(options.offload) if options.offload else None,
        cpu=Cpu(kv_bytes=options.kv_bytes, omp_threads=options.threads) if options.cpu else None,
        api_key=key,
        offline=options.offline,
        extra=extra,
        executable=options.vllm,
    )


def size(text: str) -> int:
    """Bytes; `256m` and the like count in powers of 1024, as in the configuration."""
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a size such as 256m or 8g, got `{text}`")
    return int(match[1]) * _SIZE[match[2]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvgate engine vllm",
        description="Prints or runs a stock vLLM server that fits behind kvgate.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="hub name or folder")
    add("--print", action="store_true", help="print the command for a shell instead of running it")
    add("--vllm", default="vllm", metavar="PATH", help="vLLM's program (default: from PATH)")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="default: %(default)s")
    add("--served-name", action="append", default=[], metavar="NAME", help="may be repeated")
    add("--role", default="both", help="prefill, decode or both (default)")
    add("--block-size", type=int, default=0, metavar="TOKENS", help="tokens in a KV block")
    add("--max-model-len", type=int, default=0, metavar="TOKENS")
    add("--dtype", default="")
    add("--tp", type=int, default=1, metavar="N", help="tensor parallel size")
    add("--dp", type=int, default=1, metavar="N", help="data parallel size")
    add("--api-key-file", default="", metavar="FILE")
    add("--offline", action="store_true", help="never ask the model hub")
    group = parser.add_argument_group("KV cache")
    add = group.add_argument
    add(
        "--events",
        nargs="?",
        const="tcp://*:5557",
        metavar="ENDPOINT",
        help="publish KV events (default endpoint: tcp://*:5557)",
    )
    add("--replay", default="tcp://*:5657", metavar="ENDPOINT", help="default: %(default)s")
    add("--topic", default="", help="topic of the events")
    add("--nixl", nargs="?", const="pull", choices=("pull", "push"), help="move KV by NIXL")
    add("--nixl-host", default="127.0.0.1", metavar="HOST", help="side channel, as peers reach it")
    add("--nixl-port", type=int, default=5600, metavar="PORT", help="default: %(default)s")
    add("--lease", type=int, default=30, metavar="S", help="seconds that prefilled blocks wait")
    add("--on-load-failure", choices=("recompute", "fail"), default="recompute")
    add("--engine-id", default="", metavar="ID", help="fixed NIXL id; needed for concurrent push")
    add("--offload", type=size, default=0, metavar="SIZE", help="host memory below the device")
    group = parser.add_argument_group("vLLM on the CPU")
    add = group.add_argument
    add("--cpu", action="store_true", help="an engine of vLLM's CPU build")
    add("--kv-bytes", type=size, default=256 << 20, metavar="SIZE", help="KV cache (default 256m)")
    add("--threads", type=int, default=1, metavar="N", help="OpenMP threads (default 1)")
    return parser
