"""Whether a path that a process is to make can be there: what stands in its way is a mistake.

Rights are not looked at: whoever checks a configuration need not be the process's user.
"""

from __future__ import annotations

import os
import stat
from typing import Literal

from gateway.conf.errors import quoted
from gateway.conf.node import Node
from gateway.conf.setting import Setting
from gateway.conf.sources import Token

Kind = Literal["file", "socket", "directory"]


def obstacle(path: str, kind: Kind) -> str:
    """What is in the way of a file (of any sort but a directory), socket or directory at an
    absolute path, folders above it included; "" = nothing that can be seen.
    """
    there, mode = path, _mode(path)
    while mode is None and there != "/":
        there = os.path.dirname(there)
        mode = _mode(there)
    if mode is None:
        return ""
    is_directory = stat.S_ISDIR(mode)
    if there != path or kind == "directory":
        return "" if is_directory else f"{quoted(there)} is no directory"
    if kind == "file":
        return f"{quoted(path)} is a directory" if is_directory else ""
    return "" if stat.S_ISSOCK(mode) else f"{quoted(path)} is there and is no socket"


def check_place(at: Token, path: str, kind: Kind, setting: Setting) -> None:
    """Reports what stands in the way of what the token names."""
    found = obstacle(os.path.abspath(path), kind)
    if found:
        setting.report.error(at, found, "name another place, or move it away")


def written_file(node: Node | None, setting: Setting, streams: tuple[str, ...] = ()) -> str:
    """The absolute path of a file that a statement names and that will be written, or the name of
    one of the streams; "" where there is no statement.
    """
    if node is None or node.get("path") in streams:
        return node.get("path") if node else ""
    path = os.path.join(setting.prefix, node.get("path"))
    check_place(node.token("path"), path, "file", setting)
    return path


def _mode(path: str) -> int | None:
    """None: nothing is there, or it cannot be seen."""
    try:
        return os.stat(path).st_mode
    except OSError:
        return None
