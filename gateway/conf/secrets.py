"""Secrets: `file:PATH`, `env:NAME`, or the value itself. A secret's text never appears in a
message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from gateway.conf.files import Unreadable, read_text
from gateway.conf.units import BadValue

SECRET_BYTES_MAX = 16384


def read_secret(written: str, prefix: str, environment: Mapping[str, str]) -> tuple[str, bool]:
    """The secret, and whether it was written in place. Raises BadValue, whose text says
    what is wrong.
    """
    kind, colon, rest = written.partition(":")
    if colon and kind == "file":
        return _checked(_from_file(os.path.join(prefix, rest)), "the file"), False
    if colon and kind == "env":
        if rest not in environment:
            raise BadValue(f'the environment variable "{rest}" is not set')
        return _checked(environment[rest], f'the environment variable "{rest}"'), False
    return _checked(written, "the value"), True


def _from_file(path: str) -> str:
    try:
        return read_text(path, SECRET_BYTES_MAX).rstrip("\r\n")
    except Unreadable as error:
        raise BadValue(f'cannot read "{path}": {error}') from None


def _checked(secret: str, source: str) -> str:
    if not secret:
        raise BadValue(f"{source} is empty")
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise BadValue(f"{source} has characters other than visible ASCII")
    return secret
