"""What of this machine kvbm needs, looked at: each finding says what is, and what to do about it.

Nothing is changed but for files that are removed again.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import resource
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from kvbm.conf.model import Config, Disk, Remote
from kvbm.remote import StoreError
from native import _core

Level = Literal["ok", "warn", "bad"]
MEMLOCK_MIN = 64 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """`what` was looked at, `said` what was found, `hint` what to do where that is not well."""

    level: Level
    what: str
    said: str
    hint: str = ""


def examine(config: Config | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """All that can be seen. Reads and writes, the remote store too; takes a second or two."""
    yield shared_memory()
    yield memory_lock()
    yield io_uring()
    yield hash_seed(environment)
    if config is None:
        return
    if config.host is not None:
        yield memory(config.host.size)
    if config.disk is not None:
        yield from disk(config.disk)
    if config.remote is not None:
        yield remote(config.remote)
    yield running(config)


def shared_memory() -> Finding:
    try:
        stats = os.statvfs("/dev/shm")
    except OSError as error:
        hint = "mount a tmpfs there: vLLM's host tier and its workers need it"
        return Finding("bad", "/dev/shm", error.strerror or "missing", hint)
    size, free = (n * stats.f_frsize / 2**30 for n in (stats.f_blocks, stats.f_bavail))
    said = f"{size:.1f} GiB, {free:.1f} GiB free"
    if size < 1:
        hint = "vLLM's cpu_bytes_to_use lies there: in a container, --shm-size or --ipc=host"
        return Finding("warn", "/dev/shm", said, hint)
    return Finding("ok", "/dev/shm", said)


def memory_lock() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= MEMLOCK_MIN:
        said = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 20} MiB"
        return Finding("ok", "locked memory", said)
    hint = "ulimit -l unlimited, or LimitMEMLOCK=infinity: pinned host memory needs it"
    return Finding("warn", "locked memory", f"{soft >> 10} KiB", hint)


def io_uring() -> Finding:
    """Opens a store with it, which says more than any version number."""
    with tempfile.TemporaryDirectory(prefix="kvbm-doctor-") as root:
        probe = _core.KvbmDisk(f"{root}/d", 16 << 20, segment_bytes=1 << 20, io="uring")
        try:
            _core.KvbmCore(f"{root}/s", disk=probe).stop()
        except OSError as error:
            hint = "threads are used instead; io_uring is a little faster for small blocks"
            return Finding("warn", "io_uring", str(error), hint)
    return Finding("ok", "io_uring", "works")


def hash_seed(environment: Mapping[str, str]) -> Finding:
    """vLLM seeds its block hashes by PYTHONHASHSEED, or for the sha256 kinds by a fixed text."""
    seed = environment.get("PYTHONHASHSEED", "")
    if seed and seed != "random":
        return Finding("ok", "hash seed", f"PYTHONHASHSEED={seed}; the same for every engine?")
    hint = (
        "engines with --prefix-caching-hash-algo xxhash* must all run with one PYTHONHASHSEED, or "
        "they share nothing"
    )
    return Finding("ok", "hash seed", "not set: right for sha256 and sha256_cbor", hint)


def memory(size: int) -> Finding:
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    available = int(lines["MemAvailable"].split()[0]) << 10
    said = f"{size / 2**30:.1f} GiB wanted, {available / 2**30:.1f} GiB available"
    if size > available:
        return Finding("bad", "host memory", said, "make `size` in `host` smaller")
    return Finding("ok", "host memory", said)


def disk(tier: Disk) -> Iterator[Finding]:
    there = tier.path
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    if not os.access(there, os.W_OK | os.X_OK):
        hint = f"give the daemon's user the right to write to {there}"
        yield Finding("bad", f"disk {tier.path}", "not writable", hint)
        return
    stats = os.statvfs(there)
    free, used = stats.f_bavail * stats.f_frsize, _used(tier.path)
    parts = ((free, "free"), (used, "used"), (tier.size, "wanted"))
    said = ", ".join(f"{size / 2**30:.1f} GiB {what}" for size, what in parts)
    if free + used < tier.size:
        hint = "make `size` in `disk` smaller, or the disk larger: storing stops when it is full"
        yield Finding("warn", f"disk {tier.path}", said, hint)
    else:
        yield Finding("ok", f"disk {tier.path}", said)
    yield direct(there)


def _used(path: str) -> int:
    sizes = (os.lstat(os.path.join(root, n)) for root, _, names in os.walk(path) for n in names)
    return sum(found.st_blocks * 512 for found in sizes)


def direct(path: str) -> Finding:
    """Writes a page with O_DIRECT: some file systems accept the flag and refuse the write."""
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".kvbm-doctor-") as file:
            fd = os.open(file.name, os.O_WRONLY | os.O_DIRECT)
            try:
                _write_page(fd)
            finally:
                os.close(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            return Finding("bad", f"O_DIRECT in {path}", error.strerror or str(error))
        hint = "the page cache is used: memory for it competes with the engines'"
        return Finding("warn", f"O_DIRECT in {path}", "not supported here", hint)
    return Finding("ok", f"O_DIRECT in {path}", "works")


def _write_page(fd: int) -> None:
    with mmap.mmap(-1, 4096) as page:
        os.pwrite(fd, page, 0)


def remote(tier: Remote) -> Finding:
    """Writes, reads and deletes an object."""
    what = f"remote {tier.url}"
    try:
        from kvbm.remote.store import Store

        asyncio.run(Store(tier).probe())
    except ImportError as error:
        return Finding("bad", what, str(error), "pip install 'kvgate[remote]'")
    except StoreError as error:
        hint = "bucket, endpoint, credentials, and the rights to get, put, list and delete"
        return Finding("bad", what, str(error), f"check {hint}")
    return Finding("ok", what, "an object was written, read and deleted")


def running(config: Config) -> Finding:
    with socket.socket(socket.AF_UNIX) as probe:
        failure = probe.connect_ex(config.socket)
    if failure == 0:
        return Finding("ok", f"socket {config.socket}", "a daemon answers")
    if failure in (errno.ENOENT, errno.ECONNREFUSED):
        return Finding("ok", f"socket {config.socket}", "no daemon runs")
    return Finding("bad", f"socket {config.socket}", os.strerror(failure))
