"""The gateway as a process: started from a configuration text, watched, stopped by signal.

Invariant: black box. Only the command line, the sockets, the log files and /proc are used. A
gateway that does not come up shows its own log in the error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import waiting
from harness.client import Client
from harness.wire import Short

ROOT = Path(__file__).resolve().parents[2]
START_S = 20.0


def free_ports(count: int) -> list[int]:
    """Different ports that were free a moment ago: whoever starts a server on them retries."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


class NoStart(AssertionError):
    """The gateway did not come up; the message holds its log."""


class Gateway:
    """One running gateway. `admin`: path of the unix socket that answers /kvgate/*."""

    def __init__(
        self, config: str, folder: Path, *, admin: str = "", detached: bool = False
    ) -> None:
        """`detached`: in a session of its own, without a terminal."""
        self.folder = folder
        self.admin = admin
        self.log_file = folder / "gateway.log"
        self.access_file = folder / "access.log"
        self.config_file = folder / "kvgate.conf"
        folder.mkdir(parents=True, exist_ok=True)
        self.config_file.write_text(config)
        self._log = self.log_file.open("ab")
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command(self.config_file, folder),
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=detached,
        )

    # ---- life

    def wait_ready(self, address: tuple[str, int] | str, path: str = "/kvgate/ready") -> None:
        """Blocks until it accepts on `address` and answers 200 at the admin socket's `path`."""

        def up() -> bool:
            if self.process.poll() is not None:
                raise NoStart(f"exit status {self.process.returncode}\n{self.log()[-4000:]}")
            try:
                with Client(address, timeout_s=1):
                    pass
                return not self.admin or self.get(path)[0] == 200
            except (OSError, Short):  # also of a former one's socket that is just being replaced
                return False

        try:
            waiting.until(up, "the gateway to be ready", START_S)
        except waiting.NeverHappened as error:
            self.kill()
            raise NoStart(f"{error}\n{self.log()[-4000:]}") from None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def signal_tree(self, number: signal.Signals) -> None:
        """To the process and all its descendants."""
        for pid in self.pids():
            os.kill(pid, number)

    def wait_exit(self, timeout_s: float = 10.0) -> int:
        return self.process.wait(timeout_s)

    def stop(self) -> None:
        """Ends it at once: TERM, and KILL for the whole tree if that does not help."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()

    def kill(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    # ---- what it says

    def get(self, path: str, timeout_s: float = 5.0) -> tuple[int, bytes]:
        """GET over the admin socket. Raises OSError when nobody listens."""
        with Client(self.admin, timeout_s=timeout_s) as client:
            client.send(f"GET {path} HTTP/1.1\r\nHost: admin\r\n\r\n".encode())
            reply = client.reply("GET")
            return reply.status, reply.body

    def status(self) -> dict[str, object]:
        code, body = self.get("/kvgate/status")
        assert code == 200, body
        data = json.loads(body)
        assert isinstance(data, dict)
        return data

    def wait_each(
        self, holds: Callable[[Any], bool], what: str, timeout_s: float = 20.0, workers: int = 2
    ) -> None:
        """Until every worker, by itself, has shown a status for which `holds` is true; there are to
        be `workers` of them.

        A connection goes to whichever worker takes it, so that any number of good answers may
        all be of one: each has to be heard.
        """
        good: set[int] = set()

        def all_good() -> bool:
            try:
                document: Any = self.status()
            except (OSError, AssertionError, ValueError):
                return False  # the one that answered has just died
            (good.add if holds(document) else good.discard)(document["pid"])
            there = {
                process["pid"]
                for process in document["processes"]
                if process["kind"] == "worker" and process["state"] in ("starting", "serving")
            }
            return len(there) >= workers and good >= there

        waiting.until(all_good, f"{what}, in every worker", timeout_s)

    def metrics(self) -> str:
        code, body = self.get("/metrics")
        assert code == 200, body
        return body.decode()

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def access(self) -> list[dict[str, str]]:
        """The access log so far, oldest first (the harness configures it as JSON)."""
        if not self.access_file.exists():
            return []
        lines = self.access_file.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    # ---- what /proc says

    def pids(self) -> list[int]:
        """Its process and all descendants."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    stat = (entry / "stat").read_text()
                    parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def rss_kib(self) -> int:
        """Resident memory of the whole tree."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmRSS:"):
                        total += int(line.split()[1])
        return total


class PeakRss:
    """Samples a gateway's memory from a thread while a `with` block runs."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.before = self.peak = gateway.rss_kib()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakRss:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def growth_kib(self) -> int:
        return self.peak - self.before

    def _sample(self) -> None:
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, self.gateway.rss_kib())


def command(config_file: Path, folder: Path) -> list[str]:
    """argv. FAULTS_TARGET=nginx runs nginx in the gateway's place, to prove the harness itself."""
    if os.environ.get("FAULTS_TARGET") == "nginx":
        return ["nginx", "-c", str(config_file), "-p", str(folder), "-e", "stderr"]
    return [sys.executable, "-m", "gateway", "-c", str(config_file)]


def run_cli(*args: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Runs the command line to its end."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert time.monotonic() - started < timeout_s
    return done
