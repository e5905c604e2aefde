"""The command line: nginx's letters for the gateway, words for its companions.

Exit status: 0 done, 1 the configuration or the run failed, 2 wrong usage. Data goes to stdout,
messages to stderr. Everything but the configuration language is imported only when it is needed,
so that `-t` works where native modules are not built.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, NoReturn

from gateway import __version__

if TYPE_CHECKING:
    from gateway.conf.model import Config

DEFAULT_FILE = "kvgate.conf"
USAGE = 2

# Companions: the word, the module, the function called with the arguments behind the word.
_COMMANDS = {
    ("sim",): ("engines.sim.cli", "run a simulated vLLM server"),
    ("engine", "vllm"): ("engines.vllm.cli", "print or run a vLLM command line"),
    ("upstream",): ("gateway.cli.upstream", "add, remove, drain, ready or down an engine"),
    ("explain",): ("gateway.cli.explain", "say where a request would go, and why"),
    ("roles",): ("gateway.cli.roles", "show or set who prefills, answers, or does both"),
    ("simulate",): ("gateway.cli.simulate", "replay recorded traffic, policy by policy"),
    ("workload",): ("gateway.cli.workload", "say what recorded traffic is like"),
    ("plan", "size"): ("gateway.cli.plan_size", "how much memory a model takes, on how many GPUs"),
    ("plan", "fit"): ("gateway.cli.plan_fit", "engines, roles and chunk size for an SLO"),
    ("load",): ("gateway.cli.load", "send traffic to an endpoint and measure it"),
    ("calibrate",): ("gateway.cli.calibrate", "measure an engine, print its profile line"),
    ("demo",): ("gateway.cli.demo", "two engines, the gateway and a few questions"),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] in (["help"], ["version"]):
            arguments = _word(arguments)
        if arguments and not arguments[0].startswith("-"):
            return _command(arguments)
        return _gateway(_parser().parse_args(arguments))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of -T or -V has left; nothing can be said to it
        return 1


def _word(arguments: list[str]) -> list[str]:
    """`help`, `help COMMAND` and `version` as options."""
    word, *rest = arguments
    return ["--version", *rest] if word == "version" else [*rest, "--help"]


def _command(arguments: list[str]) -> int:
    for words, (module, _) in _COMMANDS.items():
        if tuple(arguments[: len(words)]) == words:
            run: Callable[[list[str]], int | None] = importlib.import_module(module).main
            return run(arguments[len(words) :]) or 0
    if of_group := _of_group(arguments):
        print("\n".join(["commands:", *map(_line, of_group)]))
        return 0
    known = ", ".join(" ".join(words) for words in _COMMANDS)
    name = arguments[0] if arguments[0] not in ("engine", "plan") else " ".join(arguments[:2])
    print(f'kvgate: unknown command "{name}"', file=sys.stderr)
    print(f"    hint: commands are {known}; the gateway itself runs with -c FILE", file=sys.stderr)
    return USAGE


def _of_group(arguments: list[str]) -> list[tuple[str, ...]]:
    """The commands of `plan --help`, or of any other first word that has several."""
    if arguments[1:] not in (["-h"], ["--help"]):
        return []
    return [words for words in _COMMANDS if words[0] == arguments[0]]


def _line(words: tuple[str, ...]) -> str:
    return f"  kvgate {' '.join(words):<14}{_COMMANDS[words][1]}"


class _Parser(argparse.ArgumentParser):
    """argparse with our wording of a usage mistake."""

    def error(self, message: str) -> NoReturn:
        print(f"kvgate: {message}", file=sys.stderr)
        print("    hint: kvgate -h lists the options", file=sys.stderr)
        raise SystemExit(USAGE)


def _parser() -> _Parser:
    commands = "\n".join(map(_line, _COMMANDS))
    parser = _Parser(
        prog="kvgate",
        description="HTTP gateway in front of vLLM servers, configured like nginx.",
        epilog=f"companions:\n{commands}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-c", metavar="FILE", dest="file", help=f"configuration file (default: {DEFAULT_FILE})")
    add("-p", metavar="PREFIX", dest="prefix", help="where relative paths begin")
    add("-g", metavar="DIRECTIVES", dest="globals", help="directives before the file's own")
    add("-t", action="store_true", dest="test", help="test the configuration and exit")
    add("-T", action="store_true", dest="dump", help="test the configuration, print it and exit")
    words = ("stop", "quit", "reload", "reopen")
    add("-s", choices=words, metavar="SIGNAL", dest="signal", help=f"signal: {', '.join(words)}")
    add("-v", "--version", action="store_true", dest="version", help="print the version and exit")
    add("-V", action="store_true", dest="versions", help="print versions of all parts and exit")
    add("--format", choices=("text", "json"), default="text", help="form of -t's messages")
    return parser


def _gateway(options: argparse.Namespace) -> int:
    if options.version or options.versions:
        print(f"kvgate/{__version__}")
        if options.versions:
            print("\n".join(_versions()))
        return 0
    return _with_configuration(options)


def _with_configuration(options: argparse.Namespace) -> int:
    from gateway.conf import ConfigErrors, read, render_errors
    from gateway.conf.dump import dump

    only_test = options.test or options.dump
    try:
        loaded = read(_file(options), options.prefix, options.globals)
    except ConfigErrors as error:
        _say(render_errors(error.errors, options.format), options.format)
        if options.file is None:
            print("    hint: -c FILE names the configuration", file=sys.stderr)
        return 1
    if loaded.warnings or (options.format == "json" and only_test):
        _say(render_errors(loaded.warnings, options.format), options.format)
    if options.dump:
        print(dump(loaded.sources))
    if only_test:
        return 0
    if options.signal:
        return _signal(loaded.config, options.signal)
    run: Callable[..., int | None] = importlib.import_module("gateway.process.master").run
    return run(loaded.config, lambda: read(_file(options), options.prefix, options.globals)) or 0


def _signal(config: Config, word: str) -> int:
    from gateway.cli.signals import NotSent, send

    try:
        send(config, word)
    except NotSent as error:
        print(f"kvgate: {error}", file=sys.stderr)
        if error.hint:
            print(f"    hint: {error.hint}", file=sys.stderr)
        return 1
    return 0


def _file(options: argparse.Namespace) -> str:
    """The configuration file; a relative one lies under the prefix if there is one, as in nginx."""
    file: str = options.file or DEFAULT_FILE
    return os.path.join(options.prefix, file) if options.prefix else file


def _say(text: str, form: str) -> None:
    """Messages for people go to stderr; JSON for an editor is the output that was asked for."""
    print(text, file=sys.stdout if form == "json" else sys.stderr)


def _versions() -> list[str]:
    lines = [f"python {platform.python_version()} ({platform.machine()} {platform.system()})"]
    for name in ("uvicorn", "uvloop", "httptools", "starlette", "httpx", "orjson", "pyzmq"):
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name} missing")
    return [*lines, _native()]


def _native() -> str:
    try:
        native = importlib.import_module("native")
    except ImportError as error:
        return f"native missing: {error}"
    return f"native {getattr(native, '__version__', 'present')}"


if __name__ == "__main__":
    sys.exit(main())
