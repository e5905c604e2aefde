#!/usr/bin/env python3
"""What metrics and the access log cost a request and a chunk, measured inside one gateway process.

`counting.py --json -` prints one JSON line; a table goes to stderr. One gateway has servers that
differ in this only: `on` counts and writes the default access log, `twin` is the same once more,
`off` neither counts nor logs (uncounted.py), and `blind` is `off` in front of an engine whose
streams do not call themselves event streams, so that not even their events are looked at (routing
by prompts needs to see them anyhow). How they are compared is told in slices.py.

`--chunks N` measures streams of so many chunks, 5 ms apart: the figures are per chunk, and what a
request costs is divided by so many. `--servers on,off` leaves the others out, and has more turns in
the same time: an interval is as narrow as the root of their number.
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
NAMES = ("on", "twin", "off", "blind")
RATIOS = {"on_to_off": ("on", "off"), "on_to_blind": ("on", "blind"), "twin": ("twin", "on")}
HEAD = """
worker_processes 1; pid @DIR@/kvgate.pid; error_log @DIR@/error.log notice;
events { worker_connections 9000; }
http {
    access_log @DIR@/access.log;
    upstream bench {
        server 127.0.0.1:@A@ max_fails=0; keepalive 256; health_check off; slo ttft=2s tpot=50ms;
    }
    upstream opaque { server 127.0.0.1:@B@ max_fails=0; keepalive 256; health_check off; }
"""
SERVER = """
    server {
        listen 127.0.0.1:%d backlog=4096; server_name %s; %s
        keepalive_requests 1000000; keepalive_timeout 3600s;
        location /v1/ { proxy_pass http://%s; proxy_read_timeout 600s; express @EXPRESS@; }
        location = /metrics { metrics; }
    }
"""


def configuration(ports: dict[str, int], log: bool) -> str:
    servers = [
        SERVER % (
            port, name, "" if log and name in ("on", "twin") else "access_log off;",
            "opaque" if name == "blind" else "bench",
        )
        for name, port in ports.items()
    ]  # fmt: skip
    return HEAD + "".join(servers) + "}\n"


def summary(found: slices.Found, unit: str) -> dict[str, Any]:
    each = {name: [cost for turn in turns for cost in turn] for name, turns in found.items()}
    line: dict[str, Any] = {
        "unit": unit,
        "cost": {name: round(median(costs), 3) for name, costs in each.items()},
    }
    for name, (over, under) in RATIOS.items():
        if over in found and under in found:
            line[name] = slices.ratio(found[over], found[under])
    return line


def table(line: dict[str, Any]) -> str:
    rows = [f"{name:<12}{cost:>14.3f} {line['unit']}" for name, cost in line["cost"].items()]
    for name in RATIOS:
        if name in line:
            one = line[name]
            rows.append(f"{name:<12}{one['median']:>14.3f} ({one['low']:.3f} to {one['high']:.3f})")
    return "\n".join(rows)


def gateway(site: proxies.Site) -> list[str]:
    _, *command = proxies.COMMANDS["kvgate"](site)
    return [sys.executable, str(HERE / "uncounted.py"), *command[command.index("gateway") + 1 :]]


def run(args: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    behind = (*slices.engines(stack), *slices.engines(stack, "--opaque"))
    ports = {name: proxies.free_port() for name in args.servers}
    conf = configuration(ports, not args.metrics)
    conf = conf.replace("@EXPRESS@", "off" if args.starlette else "on")
    site = proxies.Site(folder, ports["on"], behind, kvgate_conf=conf)
    return summary(*slices.compare(args, site, gateway, ports, stack))


def names(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if "on" not in found or not set(found) <= set(NAMES):
        raise argparse.ArgumentTypeError(f"some of {', '.join(NAMES)}, `on` among them")
    return found


def options() -> argparse.Namespace:
    parser = slices.options(__doc__)
    add = parser.add_argument
    add("--chunks", type=int, default=0, help="of each stream; 0 = answers that are no streams")
    add("--servers", type=names, default=NAMES, help="some of " + ", ".join(NAMES))
    add("--metrics", action="store_true", help="metrics alone: nobody writes a log")
    args = parser.parse_args()
    args.turns = args.turns or (2 if args.instructions else 60)
    few = args.connections if args.chunks else 96
    args.requests = args.requests or (few if args.instructions or args.chunks else 320)
    args.warm = args.warm or 2 * args.requests
    return args


if __name__ == "__main__":
    sys.exit(slices.measured("counting", options(), run, table))
