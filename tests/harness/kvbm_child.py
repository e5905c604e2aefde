"""A kvbm core in a process of its own, to be stopped or killed.

Arguments: socket, directory, capacity, named places where it dies (may be empty). It says `ready`
and how long that took, and serves until its input ends.
"""

from __future__ import annotations

import sys
import time

from native import _core


def main() -> None:
    socket, directory, capacity, points = sys.argv[1:5]
    began = time.monotonic()
    disk = _core.KvbmDisk(
        directory, int(capacity), segment_bytes=1 << 20, sync_s=0.05, points=points
    )
    core = _core.KvbmCore(socket, disk=disk)
    print("ready", time.monotonic() - began, flush=True)
    sys.stdin.read()
    core.stop()


if __name__ == "__main__":
    main()
