"""Whatever a file holds, loading it gives a configuration or ConfigErrors, in bounded time."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.conf import ConfigErrors, load, load_text, render_errors
from gateway.conf.directives import TABLE
from gateway.conf.errors import ERRORS_MAX
from gateway.conf.files import FILE_BYTES_MAX
from gateway.conf.model import Config

ROOT = Path(__file__).parents[3]
EXAMPLES = [(ROOT / "examples" / f"{n}.conf").read_text() for n in ("aggregated", "tenants")]
NAMES = sorted({*TABLE.names(), *list(TABLE.foreign)[:20]})
VALUES = [
    "on", "off", "0", "1", "10s", "64m", "x", "http://a", "http://$upstream_by_model", "$host",
    "$nope", "127.0.0.1:80", "unix:/s", "[::1]:1", "~", "^~", "=", "/", "@n", "'a b'", '""',
    "weight=2", "alias=z", "role=decode", "ssl", "always", "backup", "env:NONE", "file:none",
    "404", "302", "json", "-1", "(", "*.a.b", "${a", "interval=1s", "escape=json", "zone=a:1m",
    "zone=a", "rate=1r/s", "$x", "${x}y", "$1", "10.0.0.1/8", "all", "=200", "~(?<x>.)(",
    "~(?<x>.)", "X-KVGate-Policy", "allow=kv", "max=1s", "if=$x", "nodelay", "default", "https://a/$x",
]  # fmt: skip


def outcome(text: str) -> Config | ConfigErrors:
    try:
        return load_text(text, environment={})
    except ConfigErrors as error:
        return error


def check_errors(error: ConfigErrors, text: str) -> None:
    assert any(e.severity == "error" for e in error.errors)
    assert len(error.errors) <= ERRORS_MAX + 1
    lines = text.split("\n")
    for one in error.errors:
        if one.place.line:
            assert 1 <= one.place.column <= len(lines[one.place.line - 1]) + 1
    shown = render_errors(error.errors)
    assert shown.encode("utf-8")
    assert all(line.isprintable() or "\t" in line for line in shown.split("\n"))
    assert len(json.loads(render_errors(error.errors, "json"))) == len(error.errors)


def check(text: str) -> None:
    result = outcome(text)
    if isinstance(result, ConfigErrors):
        check_errors(result, text)
    else:
        assert isinstance(result, Config)


ODD = st.sampled_from("ab1${}{};#'\"\\ \t\r\n=~^/é\x00\x0b\ud800")


@given(st.text(max_size=100) | st.text(alphabet=ODD, max_size=100))
def test_any_text(text: str) -> None:
    check(text)


STATEMENT = st.builds(
    lambda name, values, end: " ".join([name, *values]) + end,
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(VALUES), max_size=3),
    st.sampled_from([";", ";", ";", " {", " }", "", "\n"]),
)


@given(st.lists(STATEMENT, max_size=25))
@settings(max_examples=40)
def test_statements_in_any_order(statements: list[str]) -> None:
    check("\n".join(statements))


@st.composite
def blocks(draw: st.DrawFn) -> str:
    """Statements in the blocks they belong to, with values that mostly do not fit."""

    def body(context: str, depth: int) -> str:
        names = [n for n in TABLE.names_in(context) if n != "include"] or VALUES
        lines = []
        for name in draw(st.lists(st.sampled_from(names), max_size=5)):
            spec = TABLE.find(name, context)
            words = " ".join([name, *draw(st.lists(st.sampled_from(VALUES), max_size=3))])
            block = spec is not None and spec.block and depth > 0
            lines.append(f"{words} {{ {body(name, depth - 1)} }}" if block else f"{words};")
        return "\n".join(lines)

    return body("main", 5)


@given(blocks())
@settings(max_examples=40)
def test_statements_in_their_blocks(text: str) -> None:
    check(text)


@given(
    st.sampled_from(EXAMPLES),
    st.floats(0, 1),
    st.integers(0, 12),
    st.text(alphabet=ODD, max_size=6),
)
@settings(max_examples=60)
def test_right_file_with_one_change(example: str, where: float, cut: int, new: str) -> None:
    at = int(where * len(example))
    check(example[:at] + new + example[at + cut :])


@pytest.mark.parametrize("example", EXAMPLES, ids=["aggregated", "tenants"])
@pytest.mark.parametrize("sign", [";", "{", "}"])
def test_one_sign_lost_or_doubled_is_one_mistake(sign: str, example: str) -> None:
    """Recovery: a single slip with a sign in a right file must not set off a row of messages."""
    plain = re.sub(r"#[^\n]*|\"[^\"]*\"", lambda m: " " * len(m[0]), example)
    for at in [m.start() for m in re.finditer(re.escape(sign), plain)]:
        for change in ("", sign * 2):
            text = example[:at] + change + example[at + 1 :]
            result = outcome(text)
            assert isinstance(result, ConfigErrors), text
            errors = [e for e in result.errors if e.severity == "error"]
            limit = 1 if sign == ";" else 2
            assert len(errors) <= limit, f"{text}\n{render_errors(errors)}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"http {\0}", "NUL byte at line 1, column 7"),
        (b"\xff\xfe#", "bad byte 0xff at line 1, column 1"),
        ("# été\n# né ".encode() + b"\xe9\n", "bad byte 0xe9 at line 2, column 6"),
        (b"x" * (FILE_BYTES_MAX + 1), f"larger than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_file_that_is_no_text(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "kvgate.conf"
    path.write_bytes(content)
    with pytest.raises(ConfigErrors, match=message):
        load(str(path))


def test_directory_and_missing_file_and_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, message in [
        ("", "it is a directory"),
        ("none.conf", "no such file or directory"),
        ("pipe", "it is not a regular file"),
        ("a\0b", "null"),
        ("x" * 5000, "too long"),
    ]:
        with pytest.raises(ConfigErrors, match=message):
            load(f"{tmp_path}/{name}")


@pytest.mark.parametrize("piece", ["a{", "}", "a b;\n", '"', "http{", "server a:1;", "a " * 50])
def test_large_nonsense_is_refused(piece: str) -> None:
    result = outcome(piece * (40_000 // len(piece)))
    assert isinstance(result, ConfigErrors)
