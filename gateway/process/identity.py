"""Who the workers run as: user, group, limits, environment; and whose the log files are.

Invariant: everything that only root may do (listening, reading keys, making files) is done before,
or by the master.
"""

from __future__ import annotations

import grp
import os
import pwd
import resource
from collections.abc import Iterable, Iterator

from gateway.conf.model import Config, Location

STREAMS = {"", "stderr", "stdout"}  # in place of a file


def become(config: Config) -> None:
    """Takes on what the configuration names. Raises OSError, KeyError."""
    for name, value in config.env:
        os.environ[name] = value
    user = config.user
    entry = pwd.getpwnam(user) if user and os.geteuid() == 0 else None
    if entry is not None:
        group = config.group
        number = _group(group) if group else entry.pw_gid
        os.initgroups(user, number)
        os.setgid(number)
    # Behind the last file that is opened here, before the right to raise it is gone.
    limit = config.rlimit_nofile
    if limit:
        if os.geteuid() != 0:
            limit = min(limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if entry is not None:
        os.setuid(entry.pw_uid)


def make_folders(config: Config) -> None:
    """Those of logs and of the pid file that are missing, as is done for sockets: what `-t` finds
    good is to start. Raises OSError.
    """
    for path in sorted({config.error_log, config.pid, *_logs(config)} - STREAMS):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def entrust_logs(config: Config) -> None:
    """Makes the log files and gives them to the workers' user, who must open them again after a
    rotation. Raises OSError.
    """
    user = config.user
    if not user or os.geteuid() != 0:
        return
    uid = pwd.getpwnam(user).pw_uid
    for path in {config.error_log, *_logs(config)} - STREAMS:
        # Not blocking: a pipe that nobody reads from is an error, not a wait.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(path, flags, 0o644)
        try:
            os.fchown(fd, uid, -1)
        finally:
            os.close(fd)


def _logs(config: Config) -> Iterator[str]:
    for server in config.servers:
        for location in _all(server.locations):
            yield from (log.path for log in location.access_logs)
            if location.recording is not None:
                yield location.recording.path


def _all(locations: Iterable[Location]) -> Iterator[Location]:
    for location in locations:
        yield location
        yield from _all(getattr(location, "locations", ()))


def _group(group: str) -> int:
    return int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
