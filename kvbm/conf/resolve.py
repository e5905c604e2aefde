"""Checked tree -> `model.Config`: the one place that knows what a whole configuration means.

Everything is looked at even after a mistake; the caller throws the result away if the report has
errors. Nothing is asked of the network or of tiers; secrets are read, and paths looked at.
"""

from __future__ import annotations

import os
import pwd
from typing import Any

from gateway.conf import units
from gateway.conf.errors import quoted
from gateway.conf.node import Node
from gateway.conf.places import check_place, written_file
from gateway.conf.resolve_parts import secret
from gateway.conf.scope import default
from gateway.conf.setting import Setting
from gateway.conf.sources import Token
from kvbm.conf.directives import TABLE
from kvbm.conf.model import Address, Config, Events
from kvbm.conf.resolve_tiers import resolve_disk, resolve_host, resolve_remote

SOCKET = "run/kvbm.sock"
ADMIN = "run/kvbm-admin.sock"


def value(block: Node, name: str) -> Any:
    """The first argument of a statement of the block, or the table's default."""
    node = block.one(name)
    if node is not None:
        return node.get(node.spec.args[0].name)
    return default(name, block.spec.name, TABLE)


def resolve(root: Node, file: str, setting: Setting) -> Config:
    report, prefix = setting.report, setting.prefix
    host = resolve_host(root, setting)
    disk = resolve_disk(root, setting)
    remote = resolve_remote(root, setting)
    if not root.has("host", "disk", "remote") and not report.failed:
        hint = "write disk { path /var/lib/kvbm; size 100g; }"
        report.error(root.name, "there is no tier: nothing would be kept", hint)
    socket = root.one("socket")
    log = root.one("error_log")
    blocks = value(root, "lookup_blocks")
    token = secret(root.one("admin_token"), "token", setting)
    return Config(
        file=file,
        socket=_socket(socket, setting),
        socket_mode=int((socket.get("mode") if socket else None) or "0600", 8),
        socket_token=secret(root.one("socket_token"), "token", setting),
        allow_uids=_users(root, setting),
        connections=value(root, "connections"),
        load_timeout_s=value(root, "load_timeout"),
        store_timeout_s=value(root, "store_timeout"),
        lookup_blocks=0 if blocks == "auto" else blocks,
        admin=_admin(root, token, setting),
        admin_token=token,
        metrics=_addresses(root, "metrics", setting),
        events=_events(root, setting),
        host=host,
        disk=disk,
        remote=remote,
        error_log=written_file(log, setting, ("stderr",)) or "stderr",
        error_level=(log.get("level") if log else None) or "notice",
        pid=written_file(root.one("pid"), setting),
        prefix=prefix,
    )


def _socket(node: Node | None, setting: Setting) -> str:
    path = os.path.abspath(os.path.join(setting.prefix, node.get("path") if node else SOCKET))
    if len(os.fsencode(path)) > units.UNIX_PATH_MAX and node is not None:
        message = f"a socket's path has at most {units.UNIX_PATH_MAX} bytes, got {quoted(path)}"
        setting.report.error(node.token("path"), message)
    elif node is not None:
        check_place(node.token("path"), path, "socket", setting)
    return path


def _users(root: Node, setting: Setting) -> tuple[int, ...]:
    found: set[int] = set()
    for node in root.all("allow_user"):
        for token, name in zip(node.words, node.get("user"), strict=False):
            try:
                found.add(int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid)
            except KeyError:
                setting.report.error(token, f"unknown user {quoted(name)}")
    return tuple(sorted(found))


def _admin(root: Node, token: str, setting: Setting) -> tuple[Address, ...]:
    if not root.has("admin"):
        return (Address(unix_path=os.path.abspath(os.path.join(setting.prefix, ADMIN))),)
    found = _addresses(root, "admin", setting)
    bare = [node for node in root.all("admin") if not node.get("address").startswith("unix:")]
    if bare and not token and not root.has("admin_token"):
        message = '"admin" over TCP needs "admin_token"'
        setting.report.error(bare[0].token("address"), message, "or use unix:PATH")
    return found


def _addresses(root: Node, name: str, setting: Setting) -> tuple[Address, ...]:
    found = (_address(n.token("address"), n.get("address"), setting) for n in root.all(name))
    return tuple(address for address in found if address is not None)


def _address(token: Token, text: str, setting: Setting) -> Address | None:
    if text.startswith("unix:"):
        text = "unix:" + os.path.abspath(os.path.join(setting.prefix, text[5:]))
    try:
        read = units.address(text)
    except units.BadValue as error:
        message = f"an address must be {error.expected}, got {quoted(text)}"
        setting.report.error(token, message, error.hint)
        return None
    if not read.unix_path and read.port < 0:
        setting.report.error(token, f"{quoted(text)} has no port", f"write {text}:9465")
        return None
    if read.unix_path:
        check_place(token, read.unix_path, "socket", setting)
    return Address(read.host, read.port if not read.unix_path else 0, read.unix_path)


def _events(root: Node, setting: Setting) -> tuple[Events, ...]:
    found = []
    for node in root.all("events"):
        for name in ("endpoint", "replay"):
            written = node.get(name)
            if written is not None and not written.startswith(("tcp://", "ipc://")):
                message = f"{quoted(written)} is no endpoint of ZeroMQ"
                setting.report.error(node.token(name), message, "write tcp://*:5600 or ipc:///PATH")
            elif written is not None and written.startswith("ipc:///"):
                check_place(node.token(name), written[6:], "socket", setting)
        options = {n: node.get(n) for n in ("replay", "topic", "model", "buffer") if node.get(n)}
        found.append(Events(node.get("endpoint"), **options))
    return tuple(found)
