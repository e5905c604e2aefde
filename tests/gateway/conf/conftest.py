"""A real nginx to compare with: in a folder of its own, on unix sockets, gone after the test."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

DEADLINE_S = 20.0
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/sbin")
FRAME = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log notice;
events { worker_connections 256; }
"""
TEMPORARY = "\n".join(
    f"    {name}_temp_path {{folder}}/{name};"
    for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]  # names in lower case
    body: str


class Nginx:
    """Runs a configuration. `{folder}` in its text is a short path of this instance's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, http: str) -> Path:
        """`http`: what stands in the block. A file that nginx can run."""
        text = f"{FRAME}http {{\n    access_log off;\n{TEMPORARY}\n{http}}}\n"
        text = text.replace("{folder}", str(self.folder))
        file = self.folder / "nginx.conf"
        file.write_text(text)
        return file

    def accepts(self, http: str) -> bool:
        return self.complaint(http) == ""

    def complaint(self, http: str) -> str:
        """What `nginx -t` says is wrong; "" for nothing."""
        assert NGINX is not None
        command = [NGINX, "-t", "-q", "-p", str(self.folder), "-c", str(self.write(http))]
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S)
        return done.stderr.decode() if done.returncode else ""

    def start(self, http: str) -> None:
        assert NGINX is not None
        command = [NGINX, "-p", str(self.folder), "-c", str(self.write(http))]
        with open(self.folder / "stderr", "wb") as stderr:
            self._process = subprocess.Popen(command, stderr=stderr)
        end = time.monotonic() + DEADLINE_S
        while not self._listens():
            assert self._process.poll() is None, (self.folder / "stderr").read_text()
            assert time.monotonic() < end, "nginx does not listen"

    def _listens(self) -> bool:
        try:
            self.ask("/", host="is-it-up")
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def ask(self, target: str, host: str = "x", lines: str = "") -> Answer:
        """One request over the socket `{folder}/s`; `target` goes out as it is."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(DEADLINE_S)
            client.connect(f"{self.folder}/s")
            head = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{lines}\r\n"
            client.sendall(head.encode("latin-1"))
            raw = b"".join(iter(lambda: client.recv(65536), b""))
        top, _, body = raw.partition(b"\r\n\r\n")
        first, *rest = top.decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in rest)
        headers = [(name.lower(), value) for name, value in pairs]
        return Answer(int(first.split()[1]), headers, body.decode("latin-1"))

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(DEADLINE_S)
            self._process.kill()
            self._process.wait()


@pytest.fixture
def nginx() -> Iterator[Nginx]:
    if NGINX is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    # Not under tmp_path: the path of a socket may have 107 bytes only.
    with tempfile.TemporaryDirectory(prefix="nginx-") as folder:
        server = Nginx(Path(folder))
        try:
            yield server
        finally:
            server.stop()


Ask = Callable[[str, str], Answer]
