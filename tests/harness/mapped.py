"""Processes that map the same shared memory, write to it as fast as they can, and get killed.

A child runs a piece of Python with the inherited descriptor `fd` and its number `worker`; its
`step(i)` is called for ever, and every 50 steps it says how many it has done.
"""

import signal
import subprocess
import sys
from contextlib import suppress
from types import TracebackType

LOOP = """
import itertools, sys
fd, worker = int(sys.argv[1]), int(sys.argv[2])
{setup}
for i in itertools.count():
    step(i)
    if i % 50 == 49:
        print(i + 1, flush=True)
"""


class Writer:
    """One such child; `kill` it at whatever step it is, or let the context end it."""

    def __init__(self, setup: str, fd: int, worker: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOOP.format(setup=setup), str(fd), str(worker)],
            stdout=subprocess.PIPE,
            pass_fds=(fd,),
            text=True,
        )

    def done(self, lines: int) -> int:
        """Waits for so many reports; the steps done by the last of them."""
        assert self.process.stdout is not None
        for _ in range(lines):
            line = self.process.stdout.readline()
            assert line, f"the writer ended with {self.process.wait()}"
        return int(line)

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(ProcessLookupError):
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
