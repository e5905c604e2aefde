"""`kvgate explain -c FILE REQUEST.json`: where a running gateway would send a request, and why.

One call of the admin listener, `POST /kvgate/explain`; the request is sent to no engine, which may
only be asked for its token ids. Exit status: 0 done, 1 the gateway refused or could not be reached,
2 wrong usage.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from gateway.cli.admin_client import USAGE, Failed, Parser, asked_for, post, status_of

TIERS = ("device", "host", "disk", "remote", "predicted")


def main(argv: Sequence[str]) -> int:
    return status_of(lambda: _run(argv))


def _run(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    asked = {
        "request": _request(options.request),
        "path": options.path,
        "upstream": options.upstream,
        "headers": dict(map(_header, options.header)),
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    admin = asked_for(options)
    found = post(admin, "/kvgate/explain", asked)
    print(json.dumps(found, indent=2) if options.json else text(found))


def _parser() -> Parser:
    parser = Parser(
        prog="kvgate explain",
        description="Says where a running gateway would send a request, and why.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("request", metavar="REQUEST", help="file with the body of the request, - for stdin")
    add("--path", metavar="PATH", help="path of the request; by its body where it is not given")
    add("--upstream", metavar="NAME", help="which upstream, where the model does not say")
    add("-H", metavar="NAME:VALUE", dest="header", action="append", default=[],
        help="a policy header, such as X-KVGate-Session: a")  # fmt: skip
    add("--json", action="store_true", help="print the whole document")
    parser.add_admin()
    return parser


def _request(path: str) -> str:
    try:
        if path == "-":
            return sys.stdin.read()
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f'cannot read "{path}": {error}', status=USAGE) from None


def _header(written: str) -> tuple[str, str]:
    name, colon, value = written.partition(":")
    if not colon:
        raise Failed(f'"{written}" is not a header', "write NAME:VALUE", USAGE)
    return name.strip(), value.strip()


def text(found: dict[str, Any]) -> str:
    """The document as lines for people."""
    prompt = found["prompt"]
    read = prompt["source"] or "not read"
    if prompt["reason"]:
        read += f" ({prompt['reason']})"
    tokens = "unknown" if prompt["tokens"] is None else f"{prompt['tokens']} tokens"
    engine = found["engine"] or f"by {found['policy']}"
    lines = [
        f"upstream  {found['upstream']}",
        f"prompt    {tokens}, {read}, {prompt['tokenize_ms']} ms",
        f"engine    {engine}, decided in {found['decide_us']} us",
        "",
    ]
    return "\n".join([*lines, *_table([_row(row) for row in found["engines"]])])


def _row(engine: dict[str, Any]) -> dict[str, str]:
    row = {"engine": engine["engine"], "trust": engine["trust"]}
    if "cost_ms" in engine:
        matched = engine["matched"]
        held = ",".join(f"{tier}={matched[tier]}" for tier in TIERS if matched[tier])
        row |= {"matched": held or "none", "cost ms": f"{engine['cost_ms']:.1f}"}
        row |= {name: f"{value:.1f}" for name, value in engine["terms_ms"].items()}
        row |= {"waiting": str(engine["waiting"]), "running": str(engine["running"])}
    else:
        row["in flight"] = str(engine["in_flight"])
    return row | {"left out": engine["filtered"]}


def _table(rows: list[dict[str, str]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = [name for name in names if any(row.get(name) for row in rows)]
    widths = [max(len(name), *(len(row.get(name, "")) for row in rows)) for name in names]
    cells = [names, *([row.get(name, "") for name in names] for row in rows)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
    return [line.rstrip() for line in lines]
