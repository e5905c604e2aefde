"""One engine as it comes from outside a file: checked by the same table as a `server` line."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.conf.check_args import check_args
from gateway.conf.directives import TABLE
from gateway.conf.errors import ConfigErrors, Report
from gateway.conf.model import EngineLine
from gateway.conf.node import Node
from gateway.conf.resolve_engine import resolve_engine
from gateway.conf.sources import WORD, Source, Token
from gateway.conf.variables import BUILT_IN

PARAMS_MAX = 32


def engine_line(address: str, params: Mapping[str, str | bool]) -> EngineLine:
    """`server ADDRESS name=value ...;` with True for a word alone, such as backup. Raises
    ConfigErrors, whose places are columns of that line.
    """
    words = [address, *(_word(name, value) for name, value in params.items())]
    report = Report()
    source = Source("server", " ".join(["server", *words]))
    tokens, at = [], len("server ")
    for word in words[: PARAMS_MAX + 1]:
        tokens.append(Token(WORD, word, source, at, at + len(word)))
        at += len(word) + 1
    spec = TABLE.find("server", "upstream")
    assert spec is not None
    node = Node(spec, Token(WORD, "server", source, 0, len("server")), tuple(tokens))
    line = resolve_engine(node, report) if check_args(node, BUILT_IN, report) else None
    if line is None or report.failed:
        raise ConfigErrors(report.all())
    return line


def _word(name: str, value: str | bool) -> str:
    return name if value is True else f"{name}={value}"
