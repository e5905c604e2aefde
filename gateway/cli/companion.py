"""What companions of the command line have in common: their options, how they fail, their progress.

Invariant: whatever goes wrong is one `Failed`, said on stderr with a hint; stdout has the result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

DEFAULT_FILE = "kvgate.conf"
USAGE = 2


class Failed(Exception):
    """What went wrong, and a hint; `status` is the exit status."""

    def __init__(self, message: str, hint: str = "", status: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.status = status


class Parser(argparse.ArgumentParser):
    """The options of a companion, those that lead to the admin listener included. A usage mistake
    is a `Failed`, too.
    """

    def error(self, message: str) -> NoReturn:
        raise Failed(message, f"{self.prog} -h lists the options", USAGE)

    def add_admin(self) -> None:
        """To be called last, so that help shows a companion's own options first."""
        add = self.add_argument
        add("-c", metavar="FILE", dest="file", help=f"configuration file (default: {DEFAULT_FILE})")
        add("-p", metavar="PREFIX", dest="prefix", help="where relative paths begin")
        add(
            "--admin",
            metavar="ADDRESS",
            help="unix:/path or http://HOST:PORT, in place of the file's",
        )
        add("--token", metavar="TOKEN", help="file:PATH or env:NAME, in place of the file's")


def status_of(work: Callable[[], None]) -> int:
    """The exit status; what failed is on stderr."""
    try:
        work()
    except Failed as error:
        under_way("")
        print(f"kvgate: {error}", file=sys.stderr)
        if error.hint:
            print(f"    hint: {error.hint}", file=sys.stderr)
        return error.status
    return 0


@contextmanager
def faults_of(path: Path) -> Iterator[None]:
    """A file that cannot be read or written, or holds what cannot be, is a `Failed`."""
    try:
        yield
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise Failed(str(error)) from None


def under_way(what: str) -> None:
    """Progress on one line, where somebody looks; "" clears it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)
