"""The top level: workers, who they run as, their environment and files."""

from __future__ import annotations

import grp
import os
import pwd
import re

from gateway.conf.errors import Report, quoted
from gateway.conf.node import Node
from gateway.conf.scope import Scope

WORKERS_MAX = 64


def workers(main: Scope) -> int:
    """`auto`: as many as CPUs this process may use, at most WORKERS_MAX."""
    value = main.value("worker_processes")
    if value != "auto":
        return int(value)
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return min(count, WORKERS_MAX)


def worker_connections(root: Node, report: Report) -> int:
    events = root.one("events")
    inside = events.one("worker_connections") if events else None
    outside = root.one("worker_connections")
    if inside is not None and outside is not None:
        hint = f"first in {outside.place.file}:{outside.place.line}"
        report.error(inside.name, '"worker_connections" is duplicate', hint)
    value: int = Scope((events or root, root)).value("worker_connections")
    return value


def user(root: Node, report: Report) -> tuple[str, str]:
    """User and group, known to this machine; ("", "") where nothing is said. A user without a
    group gets the group of its name, as in nginx, or where there is none, its own."""
    node = root.one("user")
    if node is None:
        return "", ""
    name, group = node.get("name"), node.get("group", "")
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        report.error(node.token("name"), f"unknown user {quoted(name)}")
        return "", ""
    try:
        group = grp.getgrnam(group or name).gr_name
    except KeyError:
        if group:
            report.error(node.token("group"), f"unknown group {quoted(group)}")
        group = _own_group(entry.pw_gid)
    if os.geteuid() != 0:
        report.warn(node.name, '"user" has no effect', "only root can become another user")
    return name, group


def _own_group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def environment(root: Node, report: Report) -> tuple[tuple[str, str], ...]:
    """The variables that `env NAME=VALUE` sets. `env NAME` keeps one, which all are anyway."""
    found: dict[str, str] = {}
    for node in root.all("env"):
        name, equals, value = node.get("variable").partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            message = f'"env" must be NAME or NAME=VALUE, got {quoted(name)}'
            report.error(node.token("variable"), message)
        elif equals:
            found[name] = value
    return tuple(found.items())
