"""`kvgate simulate`: replays recorded traffic against simulated engines, policy by policy.

Exit status: 0 done, 1 the trace or the set-up cannot be, 2 wrong usage. The result goes to stdout.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gateway.cli import amounts
from gateway.cli.companion import Parser, faults_of, status_of
from gateway.planner.replay import Setup, as_json, as_table, compare, names
from gateway.planner.trace_files import ROWS_MAX, load
from gateway.planner.trace_formats import FORMATS


def main(argv: Sequence[str]) -> int:
    return status_of(lambda: _run(argv))


def _run(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    ttft_s, tpot_s = options.slo
    setup = Setup(
        engines=options.engines,
        profile=options.profile,
        kv_tokens=options.kv_tokens,
        chunk_tokens=options.chunk_tokens,
        speed=options.speed,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        seeds=options.seeds,
        gateways=options.gateways,
        delay_s=options.event_delay,
        loss=options.event_loss,
    )
    with faults_of(options.trace):
        chosen = names(options.policy)
        recorded = load(options.trace, options.requests)
        results = compare(recorded, setup, chosen)
    if options.json:
        print(json.dumps(as_json(recorded, setup, results)))
    else:
        print(as_table(recorded, setup, results))


def _parser() -> Parser:
    parser = Parser(
        prog="kvgate simulate",
        description="Replays recorded traffic against simulated engines, policy by policy.",
        epilog=f"traces: {FORMATS}",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--trace", type=Path, required=True, metavar="FILE")
    add("--policy", default="all", metavar="A,B", help="policies, or all (default)")
    add("--engines", type=amounts.count, default=8, metavar="N", help="default: 8")
    add("--profile", default="h100-70b-tp4", metavar="P", help="step times (h100-70b-tp4)")
    add("--kv-tokens", type=amounts.count, default=0, metavar="N", help="of an engine: 461k, 2m")
    add("--chunk-tokens", type=amounts.count, default=0, metavar="N", help="tokens of a step")
    add("--speed", type=float, default=1.0, metavar="X", help="arrivals come so much faster")
    add("--slo", type=amounts.slo, default=(0.0, 0.0), metavar="ttft=2s,tpot=50ms")
    add("--requests", type=amounts.count, default=ROWS_MAX, metavar="N", help="the first N only")
    add("--seeds", type=amounts.count, default=1, metavar="N", help="runs per policy (1)")
    add(
        "--gateways",
        type=amounts.count,
        default=1,
        metavar="N",
        help="workers sharing their load",
    )
    add("--event-delay", type=amounts.time, default=0.0, metavar="TIME", help="of KV events")
    add("--event-loss", type=float, default=0.0, metavar="SHARE", help="of KV events")
    add("--json", action="store_true", help="everything, as one JSON line")
    return parser
