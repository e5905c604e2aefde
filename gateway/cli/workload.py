"""`kvgate workload`: what recorded traffic is like, and what follows of it.

Exit status: 0 done, 1 the trace could not be read or the report not written, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from gateway.cli import amounts, live
from gateway.cli.companion import USAGE, Failed, Parser, faults_of, status_of, under_way
from gateway.cli.live import Live
from gateway.planner.advice import advice
from gateway.planner.counted import counted
from gateway.planner.gpus import GIB
from gateway.planner.trace_files import ROWS_MAX, Rows, rows, write_mooncake
from gateway.planner.trace_formats import FORMATS, Told
from gateway.planner.workload import Setting, analyse
from gateway.planner.workload_html import as_html
from gateway.planner.workload_text import as_text
from native._core import Fit

ENGINES = 8
PROFILE = "h100-70b-tp4"


def main(argv: Sequence[str]) -> int:
    return status_of(lambda: _run(argv))


def _run(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    now = _live(options)
    with faults_of(options.trace):
        setting = _setting(options)
        found = rows(options.trace, options.requests, Told(options.block, options.time_unit))
    if options.mooncake:
        _write(options.mooncake, found)
        return
    report = analyse(found, setting, lambda what: under_way(f"{what} ..."))
    under_way("")
    if options.html:
        with faults_of(options.html):
            options.html.write_text(as_html(report))
    measured = (*now.measured, *found.hashed.measured) if now else ()
    if options.json:
        live_part = {"live": {"measured": measured, "assumed": now.assumed}} if now else {}
        print(json.dumps({**report.as_json(), "advice": advice(report), **live_part}))
    elif not options.html:
        print(as_text(report))
        if now:
            print("\n".join(live.said(measured, now.assumed)))


def _live(options: argparse.Namespace) -> Live | None:
    """Puts what a running gateway says where no option does. Raises Failed."""
    if options.live == (options.trace is not None):
        raise Failed("FILE, or --live for the recording of a running gateway", status=USAGE)
    if not options.live:
        return None
    found = live.look(options)
    options.trace = found.trace
    options.engines = options.engines or found.engines
    options.profile = options.profile or found.profile
    options.kv_tokens = options.kv_tokens or found.kv_tokens
    return found


def _write(path: Path, found: Rows) -> None:
    try:
        write_mooncake(found, path)
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise Failed(f"{path}: {error}") from None
    print(f"{path}: {counted(len(found.rows), 'request')}")


def _setting(options: argparse.Namespace) -> Setting:
    """Tiers in tokens, of sizes in GiB and what a token of the profile's model weighs."""
    fit = Fit(options.profile or PROFILE)
    each = options.kv_tokens or fit.kv_tokens
    sizes = [("device", (options.engines or ENGINES) * each)]
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
        epilog=f"traces: {FORMATS}",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("trace", type=Path, metavar="FILE", nargs="?")
    add("--html", type=Path, metavar="FILE", help="write a page with plots")
    add("--json", action="store_true", help="everything, as one JSON line")
    add("--mooncake", type=Path, metavar="FILE", help="write the requests in Mooncake's form, only")
    add("--requests", type=amounts.count, default=ROWS_MAX, metavar="N", help="the first N only")
    add("--engines", type=amounts.count, default=0, metavar="N", help=f"with KV memory ({ENGINES})")
    add("--profile", default="", metavar="P", help=f"of the engines ({PROFILE})")
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
    live.add_options(parser)
    parser.add_admin()
    return parser
