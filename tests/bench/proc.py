"""What the kernel says about processes: CPU time in ns, memory, the process tree, limits and
pinning.

CPU time is read from each process's own clock (`clock_gettime` on its process CPU clock): user and
system time of all its threads, also of those that have ended, in ns — `/proc/PID/stat` counts in 10
ms steps.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

CPUCLOCK_SCHED = 2  # include/linux/posix-timers.h: clock id = (~pid << 3) | CPUCLOCK_SCHED


def cpu_ns(pids: Iterable[int]) -> int:
    """CPU time of these processes since they began. ProcessLookupError if one is gone."""
    total = 0
    for pid in pids:
        try:
            total += time.clock_gettime_ns((~pid << 3) | CPUCLOCK_SCHED)
        except OSError as error:
            raise ProcessLookupError(f"process {pid} is gone") from error
    return total


def tree(pid: int) -> list[int]:
    """The process and everything below it."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def memory_kib(pids: Iterable[int]) -> dict[str, int]:
    """RSS and PSS (shared pages divided among their users) of these processes, KiB."""
    total = {"Rss": 0, "Pss": 0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            key, _, rest = line.partition(":")
            if key in total:
                total[key] += int(rest.split()[0])
    return {"rss": total["Rss"], "pss": total["Pss"]}


def raise_file_limit(wanted: int = 20_000) -> int:
    """Raise the soft limit of open files (children inherit it); return what it is now."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def cores() -> tuple[set[int], set[int]]:
    """(cores of the load generator and the engines, cores of the proxy): one core for the proxy,
    so that every proxy has the same and no proxy's threads run beside the load; with one core
    they share it.
    """
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) == 1:
        return set(usable), set(usable)
    return set(usable[:-1]), {usable[-1]}
