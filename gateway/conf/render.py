"""Mistakes as text for people or JSON for editors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache

from gateway.conf.directives import TABLE
from gateway.conf.errors import ConfigError, one_line, printable
from gateway.conf.spec import Table

LINE_MAX = 120  # columns of a source line that are shown


@cache
def _secrets(table: Table) -> re.Pattern[str]:
    names = sorted({d.name for d in table.directives if any(a.kind == "secret" for a in d.args)})
    return re.compile(
        rf"((?:{'|'.join(names)})[ \t]+)(?![\"']?(?:file|env):)"
        rf"(\"[^\"]*\"?|'[^']*'?|[^ \t;{{}}]+)"
    )


def render_errors(errors: Iterable[ConfigError], fmt: str = "text", table: Table = TABLE) -> str:
    """All mistakes; "" for none in text, "[]" in JSON. Ends without a line end."""
    if fmt == "json":
        return json.dumps([_record(error) for error in errors], indent=1)
    return "\n".join(_text(error, table) for error in errors)


def mask_secrets(text: str, table: Table = TABLE) -> str:
    """Text of a configuration with secrets written in place hidden, columns kept."""
    return _secrets(table).sub(lambda m: m[1] + "*" * len(m[2]), text)


def _text(error: ConfigError, table: Table) -> str:
    lines = [one_line(error)]
    if error.source_line.strip():
        lines += _excerpt(mask_secrets(error.source_line, table), error.place.column)
    if error.hint:
        lines.append(f"    hint: {printable(error.hint)}")
    lines += [f"    included from {printable(p.file)}:{p.line}" for p in error.chain]
    return "\n".join(lines)


def _excerpt(line: str, column: int) -> list[str]:
    """The source line, cut around the column where it is long, and a caret below that column."""
    at = column - 1
    start = max(0, at - LINE_MAX // 2) if len(line) > LINE_MAX else 0
    shown = line[start : start + LINE_MAX]
    before = "".join("\t" if c == "\t" else " " * len(_cell(c)) for c in shown[: at - start])
    return ["    " + "".join(_cell(c) for c in shown), "    " + before + "^"]


def _cell(char: str) -> str:
    return char if char == "\t" else printable(char)


def _record(error: ConfigError) -> dict[str, object]:
    return {
        "file": error.place.file,
        "line": error.place.line,
        "column": error.place.column,
        "severity": error.severity,
        "message": error.message,
        "hint": error.hint,
        "included_from": [{"file": p.file, "line": p.line} for p in error.chain],
    }
