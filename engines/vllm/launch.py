"""A server as a child: started in a process group of its own, watched, drained, stopped whole.

vLLM is several processes; a signal to the first alone can leave the others holding memory and
ports. So everything here is done to the group, and `stop` returns only when none of it is left.
Blocking: for command lines, tests and the demo, not for an event loop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx

from engines.vllm.probe import load
from engines.vllm.spec import Command

READY_TIMEOUT_S = 600.0  # CPU engines were seen to take 30 s alone and 240 s on a loaded machine
STOP_GRACE_S = 15.0  # an idle engine takes about 4 s from TERM to its end
POLL_S = 0.25
PROGRESS_S = 5.0
TAIL_LINES = 25
TAIL_BYTES = 32 << 10


class LaunchError(RuntimeError):
    """A server that did not start, or died: says what, and ends with the tail of its log."""


class ChildServer:
    """One started server: vLLM, or another that answers 200 to a GET of `health` when it is ready.

    Use as a context manager, or call `stop` in a `finally`.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], base_url: str, log: Path, health: str
    ) -> None:
        self.base_url = base_url
        self.health = health
        self.log = log
        self.started_s = time.monotonic()
        self._process = process

    @classmethod
    def start(cls, command: Command, base_url: str, log: Path, health: str = "/health") -> Self:
        """Starts the server; its output is appended to `log`.

        Raises:
            LaunchError: the program cannot be run.
        """
        environ = {**os.environ, **dict(command.environ)}
        with log.open("ab") as output:
            try:
                process = subprocess.Popen(
                    command.argv,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise LaunchError(
                    f"cannot run `{command.argv[0]}`: {error.strerror}\n"
                    "hint: name vLLM's program with --vllm, or activate the environment it is in"
                ) from error
        return cls(process, base_url, log, health)

    @property
    def pid(self) -> int:
        """Of the process that was started, which leads the group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_ready(
        self,
        timeout_s: float = READY_TIMEOUT_S,
        progress: Callable[[float, str], None] | None = None,
    ) -> float:
        """Returns the seconds from start until `health` answered 200.

        `progress(seconds, last log line)` is called every few seconds.

        Raises:
            LaunchError: the server ended, or is not ready in time; it is stopped then.
        """
        next_progress_s = PROGRESS_S
        with httpx.Client(timeout=2.0) as client:
            while True:
                waited_s = time.monotonic() - self.started_s
                if not self.alive:
                    status = self._process.returncode
                    self.stop(grace_s=1.0)
                    raise LaunchError(self._failure(f"ended with status {status} while starting"))
                if self._healthy(client):
                    return waited_s
                if waited_s > timeout_s:
                    self.stop()
                    raise LaunchError(self._failure(f"is not ready after {timeout_s:.0f} s"))
                if progress is not None and waited_s >= next_progress_s:
                    next_progress_s = waited_s + PROGRESS_S
                    progress(waited_s, self.tail(1))
                self._pause(POLL_S)

    def drain(self, timeout_s: float) -> bool:
        """Waits until no request is running or waiting; the caller has stopped sending new ones.

        False: still busy at the deadline, or the engine does not tell its load.
        """
        deadline_s = time.monotonic() + timeout_s
        with httpx.Client(timeout=2.0) as client:
            while self.alive:
                try:
                    now = load(client.get(f"{self.base_url}/metrics").text)
                except httpx.HTTPError:
                    now = None
                if now is not None and now.idle:
                    return True
                if time.monotonic() > deadline_s:
                    return False
                self._pause(POLL_S)
        return True

    def kill(self) -> None:
        """SIGKILL to the whole group, now: what a crash looks like to a gateway."""
        self.stop(grace_s=0.0)

    def stop(self, grace_s: float = STOP_GRACE_S) -> int:
        """TERM, then KILL after `grace_s`, until no process of the group is left.

        Returns the leader's exit status as `Popen.returncode` has it. Safe to repeat.
        """
        deadline_s = time.monotonic() + grace_s
        if grace_s > 0:
            self._signal(signal.SIGTERM)
            while _group(self.pid) and time.monotonic() < deadline_s:
                self._pause(POLL_S / 5)
        while _group(self.pid):
            self._signal(signal.SIGKILL)
            self._pause(POLL_S / 5)
        return self._process.wait()

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of the log; "" while there is none."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
        return "\n".join(text.rstrip().splitlines()[-lines:])

    def _failure(self, what: str) -> str:
        return f"the server at {self.base_url} {what}; its log {self.log} ends with:\n{self.tail()}"

    def _healthy(self, client: httpx.Client) -> bool:
        try:
            return client.get(self.base_url + self.health).status_code == 200
        except httpx.HTTPError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _pause(self, seconds: float) -> None:
        """Waits, but not past the end of the leader while that is still to come."""
        if self._process.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        else:
            time.sleep(seconds)


def _group(group: int) -> list[int]:
    """Processes of a group that still run; a zombie nobody has reaped yet does not."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue  # it ended while we looked
        # "pid (comm) state ppid pgrp ...", and comm may hold spaces and brackets.
        state, _, pgrp = stat.rpartition(") ")[2].split()[:3]
        if int(pgrp) == group and state not in "ZX":
            members.append(int(entry.name))
    return members
