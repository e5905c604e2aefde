"""`kvgate workload`: what recorded traffic is like, and what follows of it.

Exit status: 0 done, 1 the trace could not be read or the report not written, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.cli import amounts
from gateway.cli.admin_client import Failed, Parser, status_of
from gateway.planner.advice import advice
from gateway.planner.trace_files import ROWS_MAX, BadTrace, Rows, rows, write_mooncake
from gateway.planner.trace_formats import Told
from gateway.planner.workload import Setting, analyse
from gateway.planner.workload_html import as_html
from gateway.planner.workload_text import as_text
from native._core import Fit

GIB = 1 << 30


def main(argv: Sequence[str]) -> int:
    return status_of(lambda: _run(argv))


def _run(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    try:
        setting = _setting(options)
        found = rows(options.file, options.requests, Told(options.block, options.time_unit))
    except OSError as error:
        raise Failed(f"{options.file}: {error.strerror}") from None
    except (BadTrace, ValueError) as error:
        raise Failed(str(error)) from None
    if options.mooncake:
        _write(options.mooncake, found)
        return
    report = analyse(found, setting, _told)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if options.html:
        try:
            options.html.write_text(as_html(report))
        except OSError as error:
            raise Failed(f"{options.html}: {error.strerror}") from None
    if options.json:
        print(json.dumps({**report.as_json(), "advice": advice(report)}))
    elif not options.html:
        print(as_text(report))


def _told(what: str) -> None:
    """Progress, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what} ...", end="", file=sys.stderr, flush=True)


def _write(path: Path, found: Rows) -> None:
    try:
        write_mooncake(found, path)
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise Failed(f"{path}: {error}") from None
    print(f"{path}: {len(found.rows)} requests")


def _setting(options: argparse.Namespace) -> Setting:
    """Tiers in tokens, of sizes in GiB and what a token of the profile's model weighs."""
    fit = Fit(options.profile)
    each = options.kv_tokens or fit.kv_tokens
    sizes = [("device", options.engines * each)]
    for name, gib in (("host", options.host_gib), ("disk", options.disk_gib),
                      ("remote", options.remote_gib)):  # fmt: skip
        if gib:
            sizes.append((name, int(gib * GIB / fit.kv_bytes_per_token)))
    return Setting(tuple(sizes), fit.chunk_tokens)


def _unit(text: str) -> float:
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    if text not in units:
        raise argparse.ArgumentTypeError(f'"{text}" is not one of {", ".join(units)}')
    return units[text]


def _parser() -> Parser:
    parser = Parser(
        prog="kvgate workload",
        description="What recorded traffic is like, and what follows of it.",
        epilog="traces: kvgate's own, Mooncake, aiperf, vLLM's timed and Qwen-Bailian JSON lines, "
        "Azure and BurstGPT CSV, folders of ServeGen's clients",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE")
    add("--html", type=Path, metavar="FILE", help="write a page with plots")
    add("--json", action="store_true", help="everything, as one JSON line")
    add("--mooncake", type=Path, metavar="FILE", help="write the requests in Mooncake's form, only")
    add("--requests", type=amounts.count, default=ROWS_MAX, metavar="N", help="the first N only")
    add("--engines", type=amounts.count, default=8, metavar="N", help="with KV memory (8)")
    add("--profile", default="h100-70b-tp4", metavar="P", help="of the engines (h100-70b-tp4)")
    add("--kv-tokens", type=amounts.count, default=0, metavar="N", help="of an engine: 461k, 2m")
    add(
        "--host-gib",
        type=amounts.gib,
        default=0.0,
        metavar="GIB",
        help="host memory for KV",
    )
    add("--disk-gib", type=amounts.gib, default=0.0, metavar="GIB", help="disks for KV, in sum")
    add("--remote-gib", type=amounts.gib, default=0.0, metavar="GIB", help="object store for KV")
    add(
        "--block",
        type=amounts.count,
        default=0,
        metavar="N",
        help="tokens of a block",
    )
    add("--time-unit", type=_unit, default=0.0, metavar="U", help="of time stamps: s, ms, us, ns")
    return parser
