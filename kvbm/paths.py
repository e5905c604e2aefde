"""Folders of what the daemon makes, and what went wrong with a path: always with the path."""

from __future__ import annotations

import errno
import os
import stat


def make_directory(path: str) -> None:
    """A directory for its owner alone, where there is none. Raises OSError."""
    if path:
        os.makedirs(path, mode=0o700, exist_ok=True)


def make_way(path: str) -> None:
    """For a socket that whoever binds it may replace: its folder, and a look at what lies there.
    Raises OSError.
    """
    make_directory(os.path.dirname(path))
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "it is there and is no socket", path)


def why(error: OSError) -> str:
    """What a message for people says of an error: the path where there is one, and the reason."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason
