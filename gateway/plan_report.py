"""The planner's last report of an upstream, in a file: written by `kvgate plan fit --live`, read by
the dashboard (`plan_report`).

Invariants: a reader finds a whole report or none; whatever is wrong with a file is a sentence.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from math import isfinite
from typing import Any

import orjson

BYTES_MAX = 1 << 20
MODE = 0o644  # it holds layouts and shares of requests, and the gateway's user reads it
Document = dict[str, Any]


def write(path: str, report: Document, now: float) -> None:
    """`report`: as `kvgate plan fit --json` prints it; `now`: seconds of the epoch.

    Raises OSError.
    """
    body = json.dumps(report | {"written_at": now})
    folder = os.path.dirname(path) or "."
    handle, draft = tempfile.mkstemp(prefix=".plan-", dir=folder)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(body)
        os.chmod(draft, MODE)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


class Reports:
    """Digests of files, each read anew when it has changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int], Document]] = {}

    def read(self, paths: dict[str, str], wall: float) -> dict[str, Document]:
        """By upstream; `paths` likewise. One without a file yet is left out."""
        found = {}
        for name, path in paths.items():
            digest = self._read(path)
            if digest is not None:
                age = wall - digest["at"] if "at" in digest else None
                found[name] = digest | {"age_s": age and round(max(age, 0.0))}
        for gone in self._known.keys() - set(paths.values()):
            del self._known[gone]
        return found

    def _read(self, path: str) -> Document | None:
        try:
            at = os.stat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return {"error": f"{path}: {error.strerror}"}
        if not stat.S_ISREG(at.st_mode):
            return {"error": f"{path} is no regular file"}
        mark = at.st_ino, at.st_size, at.st_mtime_ns
        known = self._known.get(path)
        if known is None or known[0] != mark:
            known = self._known[path] = mark, _digest(path, at.st_size)
        return known[1]


def _digest(path: str, size: int) -> Document:
    """What the page shows of a report."""
    if size > BYTES_MAX:
        return {"error": f"{path}: {size} bytes are no report of kvgate plan fit"}
    try:
        # What may be waited for, as a pipe's writer, is not: the event loop reads.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            report = json.loads(file.read(BYTES_MAX))
        now = report["now"]
        digest = {
            "at": float(report["written_at"]),
            "verdict": str(report["verdict"]["sentence"]),
            "best": str(report["best"]),
            "attainment": float(report["attainment"]),
            "now": None if now is None else str(now["layout"]),
            "now_attainment": None if now is None else float(now["attainment"]),
            "bottleneck": str(report["bottleneck"]),
            "requests": int(report["requests"]),
            "assumed": [str(line) for line in report["assumed"]],
        }
        orjson.dumps(digest)  # as the page is told; it takes no half of a surrogate pair
        if not all(isfinite(n) for n in digest.values() if isinstance(n, float)):
            raise ValueError("not a number")
    except OSError as error:
        return {"error": f"{path}: {error.strerror}"}
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return {"error": f"{path} is no report of kvgate plan fit"}
    return digest
