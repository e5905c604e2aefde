"""Files in, `model.Config` out, or `ConfigErrors` with everything that is wrong. Nothing else is
raised.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.conf.load import Language
from gateway.conf.load import Loaded as LoadedOf
from kvbm.conf.directives import TABLE
from kvbm.conf.model import Config
from kvbm.conf.resolve import resolve

LANGUAGE = Language(TABLE, resolve)
Loaded = LoadedOf[Config]


def load(path: str, prefix: str | None = None) -> Config:
    """The configuration of a file. Raises ConfigErrors.

    `prefix`: where relative paths begin; the file's directory if None.
    """
    return read(path, prefix).config


def load_text(
    text: str,
    name: str = "kvbm.conf",
    prefix: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """The configuration of a text; includes are looked up beside `name`. Raises ConfigErrors."""
    return LANGUAGE.of_text(text, name, prefix, environment).config


def read(path: str, prefix: str | None = None) -> Loaded:
    """Like `load`, with the sources and the warnings."""
    return LANGUAGE.of_file(path, prefix)
