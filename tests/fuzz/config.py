"""Fuzzes the configuration language: lexer, parser, checks, resolution.

Oracles: any text gives a `Config` or `ConfigErrors` whose every error has a place inside the text
and a message on one line; nothing else is raised, and no text takes longer than `SLOW_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2] / part) for part in ("", "tests")]

from fuzz.campaign import Target, main

from gateway.conf.directives import TABLE
from gateway.conf.errors import ConfigErrors, one_line
from gateway.conf.load import load_text
from gateway.conf.model import Config

ROOT = Path(__file__).resolve().parents[2]
SLOW_S = 5.0  # of CPU; texts are at most 32 KiB
NOWHERE = "/nonexistent/kvgate.conf"


async def check(data: bytes, cuts: Sequence[int]) -> None:
    """`cuts` is not used: a configuration is read whole."""
    text = data.decode("utf-8", "surrogateescape" if len(data) % 2 else "replace")
    started = time.process_time()
    try:
        config = load_text(text, name=NOWHERE, environment={})
        assert isinstance(config, Config)
    except ConfigErrors as errors:
        assert errors.errors, "no error in the errors"
        lines = text.count("\n") + text.count("\r") + 2
        for error in errors.errors:
            shown = one_line(error)
            assert shown.isprintable(), shown
            assert error.message and 0 <= error.place.line <= lines, error
    assert time.process_time() - started < SLOW_S, "too slow"


def _seeds() -> list[bytes]:
    found = [path.read_bytes() for path in sorted((ROOT / "examples").glob("*.conf"))]
    small = [
        b"http { server { listen 80; location / { return 200 ok; } } }",
        b"http { upstream u { model m; server 127.0.0.1:1 weight=2; least_conn; }"
        b" server { listen 80;"
        b' location ~ ^/v1/(.*)$ { proxy_pass http://u/$1; add_header X "a $uri b" always; } } }',
        b"events { } http { log_format a '$status \"$request\"' escape=json; access_log x a; }",
        b"worker_processes auto; error_log stderr debug; include *.conf; # comment",
    ]
    return [*found, *small]


def _words() -> list[bytes]:
    names = [name.encode() for name in sorted({entry.name for entry in TABLE.directives})]
    odd = [
        b"{", b"}", b";", b"'", b'"', b"\\", b"#", b"$", b"${", b"${x}", b"$http_x", b"\n",
        b"\r\n", b"\0",
        b"\xef\xbb\xbf", b"\xff", b"10s", b"1m30s", b"99999999999999999999", b"-1", b"64m",
        b"0", b"on",
        b"off", b"auto", b"unix:/x", b"[::1]:80", b"1.2.3.4:70000", b"~*", b"^~", b"=",
        b"(((((", b"[",
        b"*", b"?" * 30, b"(a+)+$", b"{" * 200, b"}" * 200, b"http://u", b"https://", b"include x;",
    ]  # fmt: skip
    return [*names, *odd]


def target() -> Target:
    return Target("configs", check, _seeds(), _words(), asyncio.new_event_loop)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(target())
