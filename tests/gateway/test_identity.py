"""Who workers run as: tried in processes of their own, as root only."""

from __future__ import annotations

import os
import pwd
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Fake

import pytest

from gateway.process.identity import become, entrust_logs

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def in_child(check: Callable[[], bool]) -> bool:
    """Whether `check()` holds in a process of its own."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@ROOT_ONLY
def test_a_worker_becomes_its_user_for_good() -> None:
    entry = pwd.getpwnam("nobody")

    def check() -> bool:
        become(Fake(user="nobody", group="", env=(("SEEN", "yes"),), rlimit_nofile=100))  # type: ignore[arg-type]
        try:
            os.setuid(0)
        except PermissionError:
            same = (os.getuid(), os.getgid()) == (entry.pw_uid, entry.pw_gid)
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return same and limit == 100 and os.environ["SEEN"] == "yes"
        return False

    assert in_child(check)


@ROOT_ONLY
def test_log_files_belong_to_the_user(tmp_path: Path) -> None:
    record = Fake(path=str(tmp_path / "record.jsonl"))
    logs = (Fake(path=str(tmp_path / "inner.log")),)
    inner = Fake(access_logs=logs, recording=record, locations=())
    outer = Fake(access_logs=(Fake(path="stdout"),), recording=None, locations=(inner,))
    config = Fake(
        user="nobody",
        error_log=str(tmp_path / "error.log"),
        pid="",
        servers=(Fake(locations=(outer,)),),
    )
    entrust_logs(config)  # type: ignore[arg-type]
    uid = pwd.getpwnam("nobody").pw_uid
    assert {p.name: p.stat().st_uid for p in tmp_path.iterdir()} == {
        "error.log": uid,
        "inner.log": uid,
        "record.jsonl": uid,
    }
