#!/usr/bin/env python3
"""What an operator's configuration costs a request, measured inside one gateway process.

`paired.py --json -` prints one JSON line; a table goes to stderr. One gateway has three servers,
each on a port of its own: `plain`, `twin` (the same once more) and `realistic`, that of
realistic.conf; maps and the log's form stand around all three, but the plain ones use none of them.
How they are compared is told in slices.py. `twin` / `plain` has to come out as 1: it says what this
run can tell apart.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import proxies
import slices

HERE = Path(__file__).parent
PLAIN = """
    server {
        listen 127.0.0.1:@PLAIN@ backlog=4096;
        keepalive_requests 1000000;
        access_log @DIR@/@PLAIN@.log;
        location /v1/ { proxy_pass http://bench; proxy_read_timeout 600s; express @EXPRESS@; }
        location = /metrics { metrics; }
    }
"""


def configuration(ports: dict[str, int]) -> str:
    """realistic.conf with plain servers in it. Ports: name of a server -> its own."""
    text = (HERE / "realistic.conf").read_text()
    servers = [PLAIN.replace("@PLAIN@", str(ports[name])) for name in ("plain", "twin")]
    return text.rstrip().removesuffix("}") + "".join(servers) + "}\n"


def summary(found: slices.Found, unit: str) -> dict[str, Any]:
    each = {name: [cost for turn in turns for cost in turn] for name, turns in found.items()}
    return {
        "unit": unit,
        "per_request": {name: round(median(costs), 2) for name, costs in each.items()},
        "least": {name: round(min(costs), 2) for name, costs in each.items()},
        "realistic": slices.ratio(found["realistic"], found["plain"]),
        "realistic_to_twin": slices.ratio(found["realistic"], found["twin"]),
        "twin": slices.ratio(found["twin"], found["plain"]),
    }


def table(line: dict[str, Any]) -> str:
    rows = [f"{'':<12}{line['unit'] + ' a request':>24}{'least':>14}{'ratio to plain':>26}"]
    for name in ("plain", "twin", "realistic"):
        told = ""
        if name in line:
            one = line[name]
            told = f"{one['median']:.3f} ({one['low']:.3f} to {one['high']:.3f})"
        cost, least = line["per_request"][name], line["least"][name]
        rows.append(f"{name:<12}{cost:>24.2f}{least:>14.2f}{told:>26}")
    return "\n".join(rows)


def run(args: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    a, b = slices.engines(stack, ports=2)
    ports = {name: proxies.free_port() for name in ("plain", "twin", "realistic")}
    conf = configuration(ports).replace("@EXPRESS@", "off" if args.starlette else "on")
    site = proxies.Site(folder, ports["realistic"], (a, b), kvgate_conf=conf)
    return summary(*slices.compare(args, site, proxies.COMMANDS["kvgate"], ports, stack))


def options() -> argparse.Namespace:
    args = slices.options(__doc__).parse_args()
    few = args.instructions
    args.turns = args.turns or (3 if few else 150)
    args.requests = args.requests or (96 if few else 320)
    args.warm = args.warm or (200 if few else 2000)
    return args


if __name__ == "__main__":
    sys.exit(slices.measured("paired", options(), run, table))
