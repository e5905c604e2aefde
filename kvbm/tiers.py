"""The configuration's tiers as the native core takes them."""

from __future__ import annotations

import os

from kvbm.conf.model import Config, Disk
from kvbm.paths import make_way
from native import _core


def open_disk(disk: Disk) -> _core.KvbmDisk:
    return _core.KvbmDisk(
        disk.path,
        disk.size,
        segment_bytes=disk.segment,
        io=disk.io,
        direct=disk.direct,
        reuse=disk.reuse,
        write_rate=disk.write_rate,
        depth=disk.depth,
        buffer_bytes=disk.buffers,
        backlog_bytes=disk.backlog,
        reset=disk.reset,
        sync_s=disk.sync_s,
        copy_threads=disk.copy_threads,
        points=os.environ.get("KVBM_TEST_POINTS", ""),
    )


def open_core(config: Config) -> _core.KvbmCore:
    """The core, recovered and listening. Raises OSError that says what stands in the way."""
    remote = config.remote
    make_way(config.socket)
    return _core.KvbmCore(
        config.socket,
        disk=open_disk(config.disk) if config.disk else None,
        host_bytes=config.host.size if config.host else 0,
        spill=config.host.spill if config.host else False,
        table_blocks=config.lookup_blocks,
        socket_mode=config.socket_mode,
        allow_uids=config.allow_uids,
        token=config.socket_token.encode(),
        connections=config.connections,
        load_s=config.load_timeout_s,
        store_s=config.store_timeout_s,
        remote_blocks=remote.known_blocks if remote else 0,
        upload=remote.upload if remote else "off",
        bundle_bytes=remote.bundle if remote else 0,
        bundle_below=remote.bundle_below if remote else 0,
        bundle_s=remote.bundle_wait_s if remote else 0.2,
    )


def tune(core: _core.KvbmCore, config: Config) -> None:
    """Takes over what can change while it runs (`reload.LIVE`)."""
    core.tune(
        load_s=config.load_timeout_s,
        store_s=config.store_timeout_s,
        allow_uids=config.allow_uids,
        reuse=config.disk.reuse if config.disk else 1,
        write_rate=config.disk.write_rate if config.disk else 0,
    )
