"""Files in, `model.Config` out, or `ConfigErrors` with everything that is wrong. Nothing else is
raised.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.conf.errors import ConfigError, ConfigErrors, Report
from gateway.conf.files import FileSet
from gateway.conf.load import tree
from gateway.conf.setting import Setting
from gateway.conf.sources import Source
from kvbm.conf.directives import TABLE
from kvbm.conf.model import Config
from kvbm.conf.resolve import resolve


@dataclass(frozen=True, slots=True)
class Loaded:
    """`sources`: every file as read, in the order of reading. `warnings` have places."""

    config: Config
    sources: tuple[Source, ...]
    warnings: tuple[ConfigError, ...]


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
    files = FileSet(os.path.dirname(name), Report())
    return _run(Source(name, text), files, prefix, environment).config


def read(path: str, prefix: str | None = None) -> Loaded:
    """Like `load`, with the sources and the warnings."""
    files = FileSet(os.path.dirname(path), Report())
    main = files.main(path)
    if main is None:
        raise ConfigErrors(files.report.all())
    return _run(main, files, prefix, None)


def _run(
    main: Source, files: FileSet, prefix: str | None, environment: Mapping[str, str] | None
) -> Loaded:
    report = files.report
    root, known = tree(main, None, files, TABLE)
    setting = Setting(
        report=report,
        prefix=files.directory if prefix is None else prefix,
        directory=files.directory,
        environment=os.environ if environment is None else environment,
        known=known,
    )
    config = resolve(root, main.name, setting)
    if report.failed:
        raise ConfigErrors(report.all())
    return Loaded(config, tuple(files.sources), report.all())
