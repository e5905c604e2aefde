"""`kvgate plan size`: what a model's KV weighs, and on how many GPUs it fits, by `config.json`.

Exit status: 0 done, 1 the model could not be read or fits nowhere, 2 wrong usage.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from gateway.cli import amounts
from gateway.cli.companion import Failed, Parser, faults_of, status_of
from gateway.planner.counted import counted
from gateway.planner.gpus import GIB, GPUS, Gpu, gpu
from gateway.planner.model_config import BITS, BadModel, ModelConfig
from gateway.planner.sizes import (
    REAL_SHARE,
    RUNTIME_BYTES,
    Floor,
    Load,
    Model,
    Transfer,
    attention,
    floors,
    model,
    transfer,
)


def main(argv: Sequence[str]) -> int:
    return status_of(lambda: _run(argv))


def _run(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    load = Load(options.tokens, options.concurrency, options.chunk_tokens, options.utilization)
    with faults_of(options.config):
        try:
            config = ModelConfig.read(options.config)
            found = model(config, options.kv_dtype, round(options.weights_gib * GIB))
        except BadModel as error:
            raise Failed(str(error), "a config.json as Hugging Face keeps it is read") from None
        kinds = [gpu(name) for name in options.gpu.split(",")]
    size = found.bytes_per_request(load.tokens)
    moved = {
        count: [transfer(count * size, gbit) for gbit in options.links]
        for count in sorted({1, load.concurrency})
    }
    fits = {kind.name: (kind, floors(found, kind, load)) for kind in kinds}
    if options.json:
        print(json.dumps(_as_json(found, load, moved, fits)))
    else:
        print("\n".join(_as_text(found, load, moved, fits)))


Moved = dict[int, list[Transfer]]
Fits = dict[str, tuple[Gpu, tuple[Floor | None, Floor | None]]]


def _as_json(found: Model, load: Load, moved: Moved, fits: Fits) -> dict[str, object]:
    size = found.bytes_per_request(load.tokens)
    return {
        "model": found.family,
        "layers": [asdict(kind) for kind in found.kinds],
        "kv_dtype": found.kv_dtype,
        "parameters": found.weights.parameters,
        "weights_bytes": found.weights.bytes,
        "weights_source": found.weights.source,
        "load": asdict(load),
        "bytes_per_token": found.bytes_per_token,
        "bytes_per_late_token": found.bytes_per_late_token,
        "bytes_per_request": size,
        "gib_per_request": size / GIB,
        "gb_per_request": size / 1e9,
        "bytes_of_all": size * load.concurrency,
        "transfers": {str(count): [asdict(one) for one in row] for count, row in moved.items()},
        "gpus": {
            name: {"aggregated": _floor(one), "disaggregated": _floor(two)}
            for name, (_, (one, two)) in fits.items()
        },
        "assumed": _assumed(found),
    }


def _floor(floor: Floor | None) -> dict[str, object] | None:
    return {**asdict(floor), "gpus": floor.gpus} if floor else None


def _assumed(found: Model) -> list[str]:
    source = {
        "files": "weights: measured, the files beside the configuration",
        "given": "weights: given",
        "counted": "weights: counted from the configuration, biases left out",
    }
    return [
        source[found.weights.source],
        "activations: estimated from one step's tokens and the model's widths",
        f"{RUNTIME_BYTES / GIB:g} GiB of each GPU for CUDA graphs, communication and the runtime",
        f"a link gives {REAL_SHARE:.0%} of its rate in practice",
    ]


def both(size: float) -> str:
    """In GiB and GB."""
    return f"{size / GIB:.3f} GiB = {size / 1e9:.3f} GB"


def _as_text(found: Model, load: Load, moved: Moved, fits: Fits) -> list[str]:
    size = found.bytes_per_request(load.tokens)
    late = found.bytes_per_late_token
    lines = [
        f"{found.family}: {attention(found)}; KV in {found.kv_dtype}",
        f"weights         {found.weights.parameters / 1e9:.2f} billion, "
        f"{both(found.weights.bytes)} "
        f"({found.weights.stored}, {found.weights.source})",
        f"KV per token    {found.bytes_per_token:,.0f} bytes"
        + (f", {late:,.0f} once every window is full" if late != found.bytes_per_token else ""),
        f"KV per request  {both(size)} ({load.tokens} tokens)",
        f"KV of {load.concurrency} at once  {both(size * load.concurrency)}",
        "",
        "transfer of KV   rate        bytes / rate   GiB taken for GB   "
        f"at {REAL_SHARE:.0%} of the rate",
    ]
    lines += [
        f"{count:>4} request{'s' * (count > 1):<4}{one.gbit_s:>6g} Gbit/s{one.seconds:>14.3f} s"
        f"{one.seconds_gib_as_gb:>16.3f} s{one.seconds_real:>17.3f} s"
        for count, row in moved.items()
        for one in row
    ]
    for name, (kind, (one, two)) in fits.items():
        lines += ["", *_floor_lines(name, kind, load, (one, two))]
    return [*lines, "", "measured or assumed:", *(f"  {line}" for line in _assumed(found))]


def _floor_lines(
    name: str, kind: Gpu, load: Load, pair: tuple[Floor | None, Floor | None]
) -> list[str]:
    one, two = pair
    head = f"{name}, {both(kind.memory_bytes)} each, {load.utilization:.0%} of it used:"
    if one is None or two is None:
        return [head, f"  no engine of up to 64 GPUs holds a request of {load.tokens} tokens"]
    each = one.each
    lines = [
        head,
        f"  aggregated     {counted(one.gpus, 'GPU')}: {counted(one.engines, 'engine')} of "
        f"{each.gpus}, {counted(each.requests, 'request')} at once in each",
        f"  disaggregated  {counted(two.gpus, 'GPU')}: {counted(two.prefill, 'engine')} for "
        f"prompts, {two.engines} for answers, {counted(two.each.gpus, 'GPU')} each",
        f"  of each GPU: weights {each.weights_bytes / GIB:.1f} GiB, activations "
        f"{each.activation_bytes / GIB:.1f} GiB, KV {each.kv_bytes / GIB:.1f} GiB",
        f"  the least that serves any load: {counted(each.gpus, 'GPU')} aggregated, "
        f"{2 * each.gpus} disaggregated: both sides hold the weights, which doubles the floor",
    ]
    if each.gpus > 8:
        lines.append("  an engine spans machines: its tensor parallelism crosses the network")
    return lines


def _parser() -> Parser:
    parser = Parser(
        prog="kvgate plan size",
        description="What a model's KV weighs, how long it takes to move, how many GPUs hold it.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", type=Path, required=True, metavar="FILE", help="config.json, or its folder")
    add("--tokens", type=amounts.some, default=8192, metavar="N", help="of a request (8192)")
    add("--concurrency", type=amounts.some, default=100, metavar="N", help="requests at once (100)")
    add("--gpu", default="h100", metavar="A,B", help=f"{', '.join(GPUS)}, or a size: 80GiB (h100)")
    add("--kv-dtype", choices=["auto", *BITS], default="auto", metavar="T", help="of the KV (auto)")
    add("--weights-gib", type=amounts.gib, default=0.0, metavar="GIB", help="in place of a count")
    add("--chunk-tokens", type=amounts.some, default=8192, metavar="N", help="of a step (8192)")
    add(
        "--utilization",
        type=amounts.share,
        default=0.9,
        metavar="SHARE",
        help="of memory (0.9)",
    )
    add("--links", type=amounts.rates, default=[100.0, 400.0, 800.0], metavar="A,B",
        help="Gbit/s (100,400,800)")  # fmt: skip
    add("--json", action="store_true", help="everything, as one JSON line")
    return parser
