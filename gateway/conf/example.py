"""Writes `examples/full.conf` from the table: every directive, its default or an example commented.

A line `#name ...;` (no blank behind the sign) is a directive that may be switched on as it stands;
lines with a blank are prose. What is not commented is the least that makes a working file.
"""

from __future__ import annotations

import textwrap

from gateway.conf.directives import TABLE
from gateway.conf.spec import Directive

_INDENT = "    "
_WIDTH = 100

_HEAD = """\
# Every directive of kvgate, in the outermost block that takes it, with its default; where there is
# no default, with an example. To change one, remove the sign and write your value.
#
# This file is generated: python -m gateway.conf.reference --example > examples/full.conf
"""

# Lines that stand: (block, directive) -> what is written.
_ACTIVE = {
    ("main", "worker_processes"): ("worker_processes auto;",),
    ("upstream", "model"): ("model meta-llama/Llama-3.1-8B-Instruct alias=llama;",),
    ("upstream", "server"): ("server 127.0.0.1:8001;", "server 127.0.0.1:8002 weight=2;"),
    ("http", "limit_conn_zone"): ("limit_conn_zone $binary_remote_addr zone=per_client:10m;",),
    ("http", "limit_req_zone"): (
        "limit_req_zone $binary_remote_addr zone=rate_per_client:10m rate=10r/s;",
    ),
    ("http", "policy_header"): (
        "policy_header X-KVGate-TTFT-SLO min=100ms max=10s;",
        "policy_header X-KVGate-Session;",
    ),
    ("server", "listen"): ("listen 8080;",),
    ("location", "proxy_pass"): ("proxy_pass http://llama;",),
}
# Blocks that are opened, with what is written before the brace.
_BLOCKS = {
    "events": "events",
    "http": "http",
    "upstream": "upstream llama",
    "server": "server",
    "location": "location /",
}
# Further blocks at the end of http, which the directives of another kind of location need.
_TAIL = """\
    # Administration on a socket that only this machine's users with the right to it reach.
    server {
        listen unix:/run/kvgate/admin.sock;
        location / { admin; }
    }

    # Metrics, read-only, on an address of their own.
    server {
        listen 127.0.0.1:9464;
        location = /metrics { metrics; }
    }
"""
_SHOWN_IN_TAIL = ("admin", "metrics")


def text() -> str:
    return _HEAD + "".join(_context("main", 0))


def _context(context: str, depth: int) -> list[str]:
    """The lines of a block: its own directives, then the blocks in it."""
    lines: list[str] = []
    here = [d for d in TABLE.directives if _home(d) == context]
    for directive in here:
        if (not directive.block or directive.free) and directive.name not in _SHOWN_IN_TAIL:
            lines.append("\n" + _directive(directive, context, depth))
    for directive in here:
        if directive.block and not directive.free:
            opener = _BLOCKS[directive.name]
            indent = _INDENT * depth
            lines.append(f"\n{_prose(directive.doc, indent)}{indent}{opener} {{")
            body = "".join(_context(directive.name, depth + 1))
            lines.append(f"\n{body.lstrip(chr(10))}{indent}}}\n")
    if context == "http":
        lines.append("\n" + _TAIL)
    return lines


def _home(directive: Directive) -> str:
    """The block a directive is shown in: the outermost that takes it."""
    order = ("main", "http", "server", "location", "upstream", "events")
    if directive.name == "worker_connections":
        return "events"
    return next(context for context in order if context in directive.contexts)


def _directive(directive: Directive, context: str, depth: int) -> str:
    indent = _INDENT * depth
    active = _ACTIVE.get((context, directive.name))
    if active is not None:
        lines = list(active)
    elif directive.default:
        lines = [f"#{directive.name} {directive.default};"]
    else:
        lines = [f"#{directive.example}"]
    return _prose(directive.doc, indent) + "".join(f"{indent}{line}\n" for line in lines)


def _prose(doc: str, indent: str) -> str:
    start = f"{indent}# "
    wrapped = textwrap.wrap(
        doc, _WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False
    )
    return "\n".join(wrapped) + "\n"
