"""Files in, `model.Config` out, or `ConfigErrors` with everything that is wrong. Nothing else is
raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.conf.check import Check
from gateway.conf.declared import declared
from gateway.conf.directives import TABLE
from gateway.conf.errors import ConfigError, ConfigErrors, Report
from gateway.conf.files import FileSet
from gateway.conf.model import Config
from gateway.conf.node import Node
from gateway.conf.parser import Parser
from gateway.conf.resolve import resolve
from gateway.conf.setting import Setting
from gateway.conf.sources import END, Source, Token
from gateway.conf.spec import Table
from gateway.conf.variables import Known

GLOBALS_NAME = "-g"
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[C]):
    """`sources`: every file as read, in the order of reading. `warnings` have places."""

    config: C
    sources: tuple[Source, ...]
    warnings: tuple[ConfigError, ...]


def load(path: str, prefix: str | None = None, globals: str | None = None) -> Config:
    """The configuration of a file. Raises ConfigErrors.

    `prefix`: where relative paths of logs, pid and secrets begin; the file's directory if None.
    `globals`: directives of the top level that stand before the file, as nginx's -g.
    """
    return read(path, prefix, globals).config


def load_text(
    text: str,
    name: str = "kvgate.conf",
    prefix: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """The configuration of a text; includes are looked up beside `name`. Raises ConfigErrors."""
    return LANGUAGE.of_text(text, name, prefix, environment).config


def read(path: str, prefix: str | None = None, globals: str | None = None) -> Loaded[Config]:
    """Like `load`, with the sources and the warnings."""
    return LANGUAGE.of_file(path, prefix, globals)


@dataclass(frozen=True, slots=True)
class Language(Generic[C]):
    """A table of directives, and what makes a configuration of a checked tree."""

    table: Table
    resolve: Callable[[Node, str, Setting], C]

    def of_file(self, path: str, prefix: str | None, globals: str | None = None) -> Loaded[C]:
        """Raises ConfigErrors."""
        files = FileSet(os.path.dirname(path), Report())
        main = files.main(path)
        if main is None:
            raise ConfigErrors(files.report.all())
        return self._run(main, files, prefix, globals=globals)

    def of_text(
        self, text: str, name: str, prefix: str | None, environment: Mapping[str, str] | None
    ) -> Loaded[C]:
        """Raises ConfigErrors."""
        files = FileSet(os.path.dirname(name), Report())
        return self._run(Source(name, text), files, prefix, environment)

    def _run(
        self,
        main: Source,
        files: FileSet,
        prefix: str | None,
        environment: Mapping[str, str] | None = None,
        globals: str | None = None,
    ) -> Loaded[C]:
        report = files.report
        root, known = tree(main, globals, files, self.table)
        setting = Setting(
            report=report,
            prefix=files.directory if prefix is None else prefix,
            directory=files.directory,
            environment=os.environ if environment is None else environment,
            known=known,
        )
        config = self.resolve(root, main.name, setting)
        if report.failed:
            raise ConfigErrors(report.all())
        return Loaded(config, tuple(files.sources), report.all())


LANGUAGE = Language(TABLE, resolve)


def tree(main: Source, globals: str | None, files: FileSet, table: Table) -> tuple[Node, Known]:
    """The checked tree of a file in the language of any table, and its variables. Mistakes are in
    the report of `files`.
    """
    report = files.report
    parser = Parser(table, files, report)
    statements = []
    for source in (*_globals(globals), main):
        _refuse_surrogates(source, report)
        statements += parser.parse(source)
    known = declared(statements)
    return Check(table, known, report).tree(statements, Token(END, "", main, 0, 0)), known


def _globals(text: str | None) -> tuple[Source, ...]:
    if not text or not text.strip():
        return ()
    return (Source(GLOBALS_NAME, text if text.rstrip()[-1] in ";}" else f"{text};"),)


def _refuse_surrogates(source: Source, report: Report) -> None:
    """A command line may hold bytes that are no text: they are refused here, once."""
    try:
        source.text.encode()
    except UnicodeEncodeError as error:
        report.error_in(source, error.start, "the text is not UTF-8")
        raise ConfigErrors(report.all()) from None
