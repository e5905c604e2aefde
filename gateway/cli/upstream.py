"""`kvgate upstream ACTION NAME SERVER`: changes the engines of a running gateway.

One call of the admin listener, `POST /kvgate/upstreams/NAME/servers` with a JSON object
`{"action", "server", "params"}`; what may be a parameter is the table's `server` line. Exit status:
0 done, 1 the gateway refused or could not be reached, 2 wrong usage.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from urllib.parse import quote

from gateway.cli.admin_client import USAGE, Failed, Parser, asked_for, post, status_of
from gateway.conf import ConfigErrors
from gateway.conf.engine_line import engine_line

ACTIONS = {
    "add": "take an engine into the upstream, or give one that is there other parameters",
    "remove": "drain an engine and forget it",
    "drain": "send it nothing new; what runs there goes on",
    "ready": "send it requests again",
    "down": "send it nothing, as `down` on its server line",
}


def main(argv: Sequence[str]) -> int:
    return status_of(lambda: _run(argv))


def _run(argv: Sequence[str]) -> None:
    options = _parser().parse_args(argv)
    params = parameters(options.action, options.server, options.params)
    admin = asked_for(options)
    body = {"action": options.action, "server": options.server, "params": params}
    post(admin, f"/kvgate/upstreams/{quote(options.name, safe='')}/servers", body)
    print(f"{options.name} {options.server}: {options.action}")


def _parser() -> Parser:
    actions = "\n".join(f"  {word:<8}{doc}" for word, doc in ACTIONS.items())
    parser = Parser(
        prog="kvgate upstream",
        description="Changes the engines of a running gateway; its file is not written.",
        epilog=f"actions:\n{actions}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("action", choices=ACTIONS, metavar="ACTION")
    add("name", metavar="NAME", help="the upstream")
    add("server", metavar="SERVER", help="the engine, as on its server line, or ADDRESS#RANK")
    add("params", metavar="PARAM", nargs="*", help="as on a server line, for add: weight=2 backup")
    parser.add_admin()
    return parser


def parameters(action: str, server: str, words: Sequence[str]) -> dict[str, str | bool]:
    """The parameters as JSON takes them, checked by the table. Raises Failed."""
    if words and action != "add":
        raise Failed(f'"{action}" takes no parameters', "they go with add", USAGE)
    params: dict[str, str | bool] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name in params:
            raise Failed(f'parameter "{name}" is duplicate', status=USAGE)
        params[name] = value if equals else True
    try:
        engine_line(server if action == "add" else server.partition("#")[0], params)
    except ConfigErrors as error:
        first = error.errors[0]
        raise Failed(first.message, first.hint, USAGE) from None
    return params
