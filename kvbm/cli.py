"""The command line: `kvbm serve` is the daemon, the other words ask a running one.

Exit status: 0 done, 1 the configuration or the run failed, 2 wrong usage. Data goes to stdout,
messages to stderr. Native code is imported only where it is needed, so that `-t` works without.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import NoReturn

from gateway.conf import ConfigErrors, render_errors
from gateway.conf.dump import dump
from kvbm.conf.directives import TABLE
from kvbm.conf.load import Loaded, read

DEFAULT_FILE = "kvbm.conf"
USAGE = 2

_COMMANDS = {
    "serve": ("kvbm.cli", "serve", "run the daemon"),
    "doctor": ("kvbm.cli_doctor", "main", "check this machine; print what the engine needs"),
    "stat": ("kvbm.cli_ask", "stat", "what a daemon holds and does"),
    "ls": ("kvbm.cli_ask", "ls", "the blocks of its disk"),
    "verify": ("kvbm.cli_ask", "verify", "read and check every block of its disk"),
    "drop": ("kvbm.cli_ask", "drop", "forget blocks"),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Libraries make files as the mask says, and blocks are what people wrote. Before any thread.
    mask = os.umask(0o077)
    try:
        if arguments and arguments[0] in _COMMANDS:
            module, name, _ = _COMMANDS[arguments[0]]
            run: Callable[[list[str]], int] = getattr(importlib.import_module(module), name)
            return run(arguments[1:])
        if arguments[:1] in (["-t"], ["-T"]) or (arguments and arguments[0] == "-c"):
            return serve(arguments)
        options = _top().parse_args(arguments)
        if options.version:
            print(f"kvbm/{metadata.version('kvgate')}")
            return 0
        _top().print_help()
        return USAGE if not arguments else 0
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    finally:
        os.umask(mask)


def program() -> NoReturn:
    """`main` of a process, which ends without the interpreter's end: a library's thread that comes
    for its lock then makes it abort, after all was done.
    """
    try:
        status = main()
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(status)


class Parser(argparse.ArgumentParser):
    """argparse with our wording of a usage mistake."""

    def error(self, message: str) -> NoReturn:
        print(f"kvbm: {message}", file=sys.stderr)
        print(f"    hint: {self.prog} -h lists the options", file=sys.stderr)
        raise SystemExit(USAGE)


def _top() -> Parser:
    commands = "\n".join(f"  kvbm {word:<10}{doc}" for word, (_, _, doc) in _COMMANDS.items())
    parser = Parser(
        prog="kvbm",
        description="Keeps KV-cache blocks of vLLM in host memory, on disk, in object storage.",
        epilog=f"commands:\n{commands}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-v", "--version", action="store_true", help="print the version and exit")
    return parser


def add_file(parser: argparse.ArgumentParser) -> None:
    """The options that name a configuration."""
    parser.add_argument("-c", metavar="FILE", dest="file", help=f"default: {DEFAULT_FILE}")
    parser.add_argument("-p", metavar="PREFIX", dest="prefix", help="where relative paths begin")


def configuration(options: argparse.Namespace) -> Loaded:
    """What `-c` and `-p` name. Raises ConfigErrors."""
    file = options.file or DEFAULT_FILE
    prefix: str | None = options.prefix
    return read(os.path.join(prefix, file) if prefix else file, prefix)


def serve(arguments: list[str]) -> int:
    parser = Parser(prog="kvbm serve", allow_abbrev=False)
    add_file(parser)
    parser.add_argument("-t", action="store_true", dest="test", help="test the configuration only")
    parser.add_argument("-T", action="store_true", dest="dump", help="test it and print it")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of -t")
    options = parser.parse_args(arguments)
    only_test = options.test or options.dump
    try:
        loaded = configuration(options)
    except ConfigErrors as error:
        _say(render_errors(error.errors, options.format, TABLE), options.format)
        if options.file is None:
            print("    hint: -c FILE names the configuration", file=sys.stderr)
        return 1
    if loaded.warnings or (options.format == "json" and only_test):
        _say(render_errors(loaded.warnings, options.format, TABLE), options.format)
    if options.dump:
        print(dump(loaded.sources, TABLE))
    if only_test:
        return 0
    from kvbm.daemon import NotStarted, run

    try:
        return run(loaded.config, lambda: configuration(options))
    except NotStarted as error:
        print(f"kvbm: {error}", file=sys.stderr)
        return 1


def _say(text: str, form: str) -> None:
    """Messages for people go to stderr; JSON for an editor is the output that was asked for."""
    print(text, file=sys.stdout if form == "json" else sys.stderr)


if __name__ == "__main__":
    program()
