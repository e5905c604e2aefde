"""`kvgate roles [NAME SERVER ROLE]`: which engines of a running gateway prefill or answer.

One call of the admin listener, `GET /kvgate/roles` or `POST` with `{"upstream", "server", "role"}`.
Exit status: 0 done, 1 the gateway refused or could not be reached, 2 wrong usage.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.cli.admin_client import USAGE, Failed, Parser, asked_for, get, post, status_of

ROLES = ("prefill", "decode", "both")
PATH = "/kvgate/roles"


def main(argv: Sequence[str]) -> int:
    return status_of(lambda: _run(argv))


def _run(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    words = (options.name, options.server, options.role)
    if any(words) and not all(words):
        raise Failed("a move is NAME SERVER ROLE", "none of them: all roles are shown", USAGE)
    admin = asked_for(options)
    if options.role:
        body = {"upstream": options.name, "server": options.server, "role": options.role}
        found = post(admin, PATH, body)
    else:
        found = get(admin, PATH)
    print(json.dumps(found, indent=2) if options.json else text(found))


def _parser() -> Parser:
    parser = Parser(
        prog="kvgate roles",
        description="Shows which engines prefill, answer, or do both; or moves one of them.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("name", metavar="NAME", nargs="?", help="the upstream")
    add("server", metavar="SERVER", nargs="?", help="an engine that was declared role=both")
    add("role", metavar="ROLE", nargs="?", choices=ROLES, help=", ".join(ROLES))
    add("--json", action="store_true", help="print JSON")
    parser.add_admin()
    return parser


def text(found: dict[str, Any]) -> str:
    """For people."""
    lines = []
    for name, upstream in found.items():
        lines.append(f"{name}: roles {upstream['roles']}")
        for engine in upstream["engines"]:
            declared = f"declared {engine['declared']}"
            lines.append(
                f"  {engine['server']:<32}{engine['role']:<9}{declared:<18}"
                f"{engine['in_flight']} in flight"
            )
    return "\n".join(lines)
