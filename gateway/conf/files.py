"""Reading configuration files: the only I/O of the configuration language besides certificates
and secrets.

Whatever lies on the disk (a directory, a pipe, a binary, a file nobody may read, one that is too
large) becomes a message with a place; nothing here raises. Totals over one run are bounded.
"""

from __future__ import annotations

import glob
import os
import stat
from dataclasses import dataclass, field

from gateway.conf.errors import Report, quoted
from gateway.conf.sources import Source, Token

FILE_BYTES_MAX = 2 << 20
TOTAL_BYTES_MAX = 16 << 20
FILES_MAX = 1024
INCLUDE_DEPTH_MAX = 16


class Unreadable(Exception):
    """A file cannot be used; the text says why, without naming the file."""


def read_text(path: str, limit: int = FILE_BYTES_MAX) -> str:
    """The text of a regular UTF-8 file of at most `limit` bytes. Raises Unreadable."""
    data = read_bytes(path, limit)
    nul = data.find(b"\0")
    if nul >= 0:
        raise Unreadable(f"it is not text: NUL byte at {_spot(data, nul)}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"bad byte 0x{data[error.start]:02x} at {_spot(data, error.start)}"
        raise Unreadable(f"it is not UTF-8: {what}") from None


def _spot(data: bytes, at: int) -> str:
    """Columns are characters, as in all messages: what comes before is text."""
    begin = data.rfind(b"\n", 0, at) + 1
    column = len(data[begin:at].decode("utf-8", "replace")) + 1
    return f"line {data.count(10, 0, at) + 1}, column {column}"


def read_bytes(path: str, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises Unreadable."""
    try:
        # Not blocking: opening a pipe without a writer must not hang the test of a configuration.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise Unreadable(_reason(error)) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise Unreadable(f"it is {kind}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise Unreadable(_reason(error)) from None
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise Unreadable(f"it is larger than {limit} bytes")
    return data


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


@dataclass(slots=True)
class FileSet:
    """The files of one run. `directory` is the main file's: includes are relative to it, as in
    nginx."""

    directory: str
    report: Report
    sources: list[Source] = field(default_factory=list)
    _bytes: int = 0

    def main(self, path: str) -> Source | None:
        try:
            return self._keep(Source(path, read_text(path)))
        except Unreadable as error:
            self.report.error_of_file(path, f"cannot read the configuration: {error}")
            return None

    def included(self, at: Token) -> list[Source]:
        """The sources an `include` argument stands for, by name; mistakes are reported at it."""
        if len(at.source.chain) >= INCLUDE_DEPTH_MAX:
            self.report.error(at, f"includes are nested deeper than {INCLUDE_DEPTH_MAX}")
            return []
        sources = []
        for path in self._paths(at):
            source = self._include(path, at)
            if source is not None:
                sources.append(source)
        return sources

    def _paths(self, at: Token) -> list[str]:
        if "\0" in at.text:
            self.report.error(at, "a file name cannot hold a NUL character")
            return []
        path = os.path.join(self.directory, at.text)
        if not glob.has_magic(at.text):
            return [path]
        # The directory's own name is taken literally even where it holds glob characters.
        pattern = os.path.join(glob.escape(self.directory), at.text)
        return sorted(glob.glob(pattern))[: FILES_MAX + 1]

    def _include(self, path: str, at: Token) -> Source | None:
        if self._is_open(path, at):
            self.report.error(at, f"{quoted(path)} includes itself", "remove one of the includes")
            return None
        if len(self.sources) >= FILES_MAX:
            self.report.error(at, f"more than {FILES_MAX} files are included")
            return None
        try:
            text = read_text(path)
        except Unreadable as error:
            self.report.error(at, f"cannot include {quoted(path)}: {error}")
            return None
        if self._bytes + len(text) > TOTAL_BYTES_MAX:
            self.report.error(at, f"the files are together larger than {TOTAL_BYTES_MAX} bytes")
            return None
        return self._keep(Source(path, text, (at.place, *at.source.chain)))

    @staticmethod
    def _is_open(path: str, at: Token) -> bool:
        names = (at.source.name, *(place.file for place in at.source.chain))
        real = os.path.realpath(path)
        return any(os.path.realpath(name) == real for name in names)

    def _keep(self, source: Source) -> Source:
        self._bytes += len(source.text)
        self.sources.append(source)
        return source
