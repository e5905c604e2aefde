"""`kvgate calibrate`: measures a live engine and prints the `profile` line that describes it.

Exit status: 0 done, 1 the engine could not be measured, 2 wrong usage. The line goes to stdout,
what was measured to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence

from gateway.cli import amounts
from gateway.cli.companion import Failed, Parser, status_of
from gateway.planner.calibrate import LONGEST, REQUESTS_MAX, Calibrated, Limits, calibrate
from gateway.planner.calibrate import Failed as CannotMeasure
from gateway.planner.counted import counted

ODD = 0.15  # an error above it is worth a word


def main(argv: Sequence[str]) -> int:
    return status_of(lambda: _run(argv))


def _run(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    limits = Limits(
        min(options.requests, REQUESTS_MAX), options.time, options.tokens, options.chunk_tokens
    )
    key = os.environ.get(options.key_from, "") if options.key_from else ""
    try:
        found = asyncio.run(calibrate(options.url, key, limits))
    except CannotMeasure as error:
        raise Failed(str(error), error.hint) from None
    if options.json:
        print(json.dumps(_as_json(found)))
    else:
        print(_as_text(found), file=sys.stderr)
        print(found.line())


def _as_json(found: Calibrated) -> dict[str, object]:
    measured = found.measured
    return {
        "model": measured.model,
        "requests": measured.requests,
        "line": found.line(),
        "fit": dict(found.fit.values()),
        "chunk_tokens": found.chunk_tokens,
        "prefill_error": found.prefill_error,
        "decode_error": found.decode_error,
        "prefills": measured.prefills,
        "decodes": measured.decodes,
    }


def _as_text(found: Calibrated) -> str:
    measured, fit = found.measured, found.fit
    lines = [
        f"{measured.model}: {counted(measured.requests, 'request')}",
        "prompt tokens      ms   fitted",
    ]
    for tokens, _, ms in measured.prefills:
        lines.append(f"{tokens:>13.0f}{ms:>8.1f}{fit.prefill_ms(int(tokens)):>9.1f}")
    lines.append("answers   KV tokens   ms per token   fitted")
    for answers, kv_tokens, ms in measured.decodes:
        modelled = fit.decode_ms(int(answers), int(kv_tokens))
        lines.append(f"{answers:>7.0f}{kv_tokens:>12.0f}{ms:>15.2f}{modelled:>9.2f}")
    errors = f"prompts {found.prefill_error:.1%}, answers {found.decode_error:.1%}"
    lines.append(f"mean error of the fit: {errors}")
    if max(found.prefill_error, found.decode_error) > ODD:
        lines.append("    hint: was the engine idle? is --chunk-tokens its max_num_batched_tokens?")
    return "\n".join(lines)


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1 << 20:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number from 1 to {1 << 20}')
    return int(text)


def _parser() -> Parser:
    parser = Parser(
        prog="kvgate calibrate",
        description="Measures an idle engine and prints the profile line that describes it.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("url", metavar="URL", help="of an engine, such as http://10.0.0.11:8000")
    add("--requests", type=_count, default=120, metavar="N", help="send no more (120)")
    add("--time", type=amounts.time, default=120.0, metavar="TIME",
        help="begin nothing after it (2m)")  # fmt: skip
    add("--tokens", type=_count, default=LONGEST, metavar="N", help=f"longest prompt ({LONGEST})")
    add("--chunk-tokens", type=_count, default=2048, metavar="N",
        help="the engine's max_num_batched_tokens (2048)")  # fmt: skip
    add("--key-from", metavar="VARIABLE", help="environment variable with the engine's API key")
    add("--json", action="store_true", help="everything, as one JSON line")
    return parser
