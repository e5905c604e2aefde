"""What the daemon makes: folders too, and a failure names the path."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.blocks import ROOT
from harness.kvbm_daemon import DISK, Served
from harness.waiting import until

from kvbm.conf import load_text
from kvbm.tiers import open_core

IN_THE_WAY = "/proc/nowhere"  # where nobody may make anything, root neither


def test_a_missing_folder_of_a_file_is_made(tmp_path: Path) -> None:
    text = f"pid a/k.pid;\nsocket b/s;\nevents ipc://{tmp_path}/c/e;\n"
    with Served(tmp_path, f"{text}{DISK}") as served:
        assert all((tmp_path / name).exists() for name in ("a/k.pid", "b/s", "c/e"))
        served.file.write_text(f"error_log logs/k.log info;\n{text}{DISK}")
        log = tmp_path / "logs" / "k.log"

        def reloaded() -> bool:
            return log.exists() and "reloaded" in log.read_text()

        served.send(signal.SIGHUP)
        until(reloaded, "the log in its folder")
        shutil.rmtree(tmp_path / "logs")
        served.send(signal.SIGHUP)
        until(reloaded, "the folder again")


@pytest.mark.parametrize(
    "text",
    [
        f"error_log {IN_THE_WAY}/k.log; {DISK}",
        f"pid {IN_THE_WAY}/k.pid; {DISK}",
        f"socket {IN_THE_WAY}/s; {DISK}",
        f"admin unix:{IN_THE_WAY}/s; {DISK}",
        f"events ipc://{IN_THE_WAY}/e; {DISK}",
        f"disk {{ path {IN_THE_WAY}/d; size 16m; }}",
        f"{DISK} remote {{ url file://{IN_THE_WAY}/r; }}",
    ],
)
def test_a_start_that_fails_names_the_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "kvbm.conf").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "kvbm", "serve", "-c", str(tmp_path / "kvbm.conf")],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert IN_THE_WAY in done.stderr
    assert "Errno" not in done.stderr


def test_a_file_at_the_place_of_the_socket_is_left_alone(tmp_path: Path) -> None:
    """Even where it came after the configuration was read."""
    there = tmp_path / "s"
    config = load_text(f"socket s; {DISK}", prefix=str(tmp_path))
    there.write_text("precious")
    with pytest.raises(OSError, match="is no socket"):
        open_core(config)
    assert there.read_text() == "precious"
