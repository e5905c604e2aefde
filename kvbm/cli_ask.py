"""Commands that ask a running daemon: stat, ls, verify, drop."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from gateway.conf import ConfigErrors, render_errors
from gateway.conf.units import BadValue
from gateway.conf.units import address as read_address
from kvbm import shown
from kvbm.asking import Asking, NoAnswer
from kvbm.cli import Parser, add_file, configuration
from kvbm.conf.directives import TABLE
from kvbm.conf.model import Address

PAGE = 4096
WATCH_S = 0.2


def _parser(word: str) -> Parser:
    parser = Parser(prog=f"kvbm {word}", allow_abbrev=False)
    add_file(parser)
    parser.add_argument("--admin", metavar="ADDRESS", help="unix:PATH or HOST:PORT of the daemon")
    parser.add_argument("--token", help="the admin token, for HOST:PORT", default="")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _address(options: argparse.Namespace) -> tuple[Address, str]:
    """Where to ask, and with which token. Raises ConfigErrors, NoAnswer."""
    if options.admin:
        try:
            read = read_address(options.admin)
        except BadValue as error:
            raise NoAnswer(f"--admin must be {error.expected}, got `{options.admin}`") from None
        return Address(read.host, max(read.port, 0), read.unix_path), options.token
    config = configuration(options).config
    local = [address for address in config.admin if address.unix_path]
    return (local or list(config.admin))[0], options.token or config.admin_token


def _with(options: argparse.Namespace, ask: Callable[[Asking], int]) -> int:
    try:
        address, token = _address(options)
        with Asking(address, token) as asking:
            return ask(asking)
    except ConfigErrors as error:
        print(render_errors(error.errors, table=TABLE), file=sys.stderr)
    except NoAnswer as error:
        print(f"kvbm: {error}", file=sys.stderr)
        if error.hint:
            print(f"    hint: {error.hint}", file=sys.stderr)
    return 1


def _show(options: argparse.Namespace, document: Any, text: Callable[[Any], str]) -> None:
    print(json.dumps(document, indent=1) if options.json else text(document))


def stat(arguments: Sequence[str]) -> int:
    options = _parser("stat").parse_args(arguments)

    def ask(asking: Asking) -> int:
        _show(options, asking.get("/status"), shown.stat)
        return 0

    return _with(options, ask)


def ls(arguments: Sequence[str]) -> int:
    parser = _parser("ls")
    parser.add_argument("namespace", nargs="?", default="", help="its first hexadecimal digits")
    parser.add_argument("-n", type=int, default=0, metavar="N", help="at most so many (0: all)")
    options = parser.parse_args(arguments)

    def ask(asking: Asking) -> int:
        left, cursor = options.n or sys.maxsize, 0
        while left > 0:
            page = asking.get("/blocks", cursor=cursor, limit=PAGE, namespace=options.namespace)
            rows = page["blocks"][:left]
            left -= len(rows)
            if options.json:
                for row in rows:
                    print(json.dumps(row))
            elif rows:
                print(shown.blocks(rows))
            if page["next"] is None:
                break
            cursor = page["next"]
        return 0

    return _with(options, ask)


def verify(arguments: Sequence[str]) -> int:
    parser = _parser("verify")
    parser.add_argument("--rate", type=int, default=0, metavar="BYTES", help="a second (0: all)")
    parser.add_argument("--remote", action="store_true", help="the object store too: reads it all")
    parser.add_argument("--no-wait", action="store_true", help="begin only")
    options = parser.parse_args(arguments)

    def ask(asking: Asking) -> int:
        asking.post("/verify", {"rate": options.rate, "remote": options.remote})
        report = _end(options, lambda: asking.get("/verify"))
        _show(options, report, shown.verified)
        store = report["remote"] or {"bad": 0, "why": ""}
        return 1 if report["bad"] or store["bad"] or store["why"] else 0

    return _with(options, ask)


def drop(arguments: Sequence[str]) -> int:
    parser = _parser("drop")
    parser.add_argument("namespace", nargs="?", help="its first hexadecimal digits")
    parser.add_argument("key", nargs="*", help="keys as `kvbm ls` shows them")
    parser.add_argument("--all", action="store_true", help="all there is (of the namespace)")
    parser.add_argument("--no-wait", action="store_true", help="begin only")
    options = parser.parse_args(arguments)
    if bool(options.key) == options.all:
        parser.error("say NAMESPACE KEY ..., or --all with or without a namespace")
    body: dict[str, Any] = {"all": True} if options.all else {"keys": options.key}
    # An empty one, which a script's unset variable makes, is refused there: it does not mean all.
    if options.namespace is not None:
        body["namespace"] = options.namespace

    def ask(asking: Asking) -> int:
        asking.post("/drop", body)
        report = _end(options, lambda: asking.get("/drop"))
        _show(options, report, shown.dropped)
        if left := shown.not_dropped(report):
            print(f"kvbm: {left}", file=sys.stderr)
        return 1 if left else 0

    return _with(options, ask)


def _end(options: argparse.Namespace, ask: Callable[[], Any]) -> Any:
    """The last report of what goes on in the daemon; the first one with --no-wait."""
    report = ask()
    while not options.no_wait and not report["done"]:
        time.sleep(WATCH_S)
        report = ask()
    return report
