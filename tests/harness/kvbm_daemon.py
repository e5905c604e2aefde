"""`kvbm serve` in a process of its own, with a configuration in a directory of the test's."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.blocks import ROOT
from harness.waiting import until

from kvbm.asking import Asking, NoAnswer
from kvbm.cli import main
from kvbm.conf.model import Address

DISK = "disk { path disk; size 64m; segment 1m; sync 50ms; }\n"


class Ended(AssertionError):
    """The daemon ended before it served."""


class Served:
    """Use as a context manager; `root` outlives it, so another one finds what this one left."""

    def __init__(self, root: Path, text: str = DISK, **environment: str) -> None:
        self.root = root
        self.socket = str(root / "run" / "kvbm.sock")
        self.file = root / "kvbm.conf"
        self.log = root / "kvbm.log"
        self.file.write_text(f"error_log kvbm.log info;\n{text}")
        self.environment = environment
        self.asking = Asking(Address(unix_path=str(root / "run" / "kvbm-admin.sock")))
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Served:
        try:
            self.start()
        except AssertionError:
            self.end(signal.SIGKILL)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(signal.SIGKILL)
        self.asking.__exit__()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvbm", "serve", "-c", str(self.file)],
            stderr=subprocess.PIPE, text=True, env={**os.environ, **self.environment}, cwd=ROOT,
            umask=0o022,
        )  # fmt: skip
        until(self._answers, "an answer of the daemon", 60.0)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise Ended(f"the daemon ended: {self.said()}")
        try:
            return bool(self.asking.get("/health")["running"])
        except NoAnswer:
            return False

    def said(self) -> str:
        """What it wrote to its standard error, once it has ended."""
        assert self.process is not None
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit status."""
        if self.process is None:
            return 0
        self.process.send_signal(number)
        status = self.process.wait(20)
        if self.process.stderr is not None:
            self.process.stderr.close()
        self.process = None
        return status

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = self.asking.get("/status")
        return document

    def tier(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.status()["tiers"][name]
        return found

    def logged(self, text: str) -> bool:
        return text in self.log.read_text()


@dataclass(frozen=True, slots=True)
class Ran:
    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str) -> Ran:
    """Runs `kvbm ARGUMENTS`, in this process: starting one takes longer than the command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(arguments)
        except SystemExit as left:
            status = int(left.code or 0)
    return Ran(status, out.getvalue(), err.getvalue())


class Whole:
    """As `blocks.Daemon`, but all of it: configuration, administration, events."""

    def __init__(self, root: Path, capacity: int = 64 << 20, points: str = "") -> None:
        text = (
            f"events ipc://{root}/events replay=ipc://{root}/replay;\n"
            f"disk {{ path disk; size {capacity}; segment 1m; sync 50ms; }}\n"
            f"socket kvbm.sock;\nadmin unix:run/kvbm-admin.sock;\n"
        )
        self.served = Served(root, text, KVBM_TEST_POINTS=points)
        self.ready_s: float | None = None
        # It may die while it opens the store, at a named place.
        with contextlib.suppress(Ended):
            self.served.start()
            self.ready_s = self.served.tier("disk")["recovery_us"] / 1e6

    @property
    def is_alive(self) -> bool:
        process = self.served.process
        return process is not None and process.poll() is None

    def end(self) -> None:
        self.served.end(signal.SIGKILL)
        self.served.asking.__exit__()
