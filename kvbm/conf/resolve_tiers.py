"""The tiers' blocks."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit

from gateway.conf.errors import quoted
from gateway.conf.node import Node
from gateway.conf.places import check_place
from gateway.conf.resolve_parts import secret
from gateway.conf.scope import default
from gateway.conf.setting import Setting
from kvbm.conf.directives import TABLE
from kvbm.conf.model import Disk, Host, Remote

KEYS = "it would be in messages: write access_key and secret_key"
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "azure", "file")
# A segment and four journals must fit thrice (`DiskOptions::check` of the native core).
DISK_MIN = 8 << 20


def _value(block: Node, name: str) -> Any:
    node = block.one(name)
    if node is not None:
        return node.get(node.spec.args[0].name)
    return default(name, block.spec.name, TABLE)


def _required(block: Node, name: str, setting: Setting) -> Any:
    """The value of a statement that must be there; None where it is not, which is reported."""
    node = block.one(name)
    if node is None:
        if not block.has(name):
            spec = TABLE.find(name, block.spec.name)
            hint = f"such as {spec.example}" if spec else ""
            message = f"{quoted(block.spec.name)} needs {quoted(name)}"
            setting.report.error(block.name, message, hint)
        return None
    return node.get(node.spec.args[0].name)


def resolve_host(root: Node, setting: Setting) -> Host | None:
    block = root.one("host")
    size = _required(block, "size", setting) if block else None
    if size is None:
        return None
    disk = root.one("disk")
    admit = disk.one("admit") if disk else None
    return Host(size, spill=admit is not None and admit.get("policy") == "on_evict")


def resolve_disk(root: Node, setting: Setting) -> Disk | None:
    block = root.one("disk")
    if block is None:
        return None
    path, size = _required(block, "path", setting), _required(block, "size", setting)
    if path is None or size is None:
        return None
    if size < DISK_MIN:
        message = f"a disk tier needs at least {DISK_MIN >> 20}m, got {size} bytes"
        setting.report.error(block.one("size").token("size"), message)  # type: ignore[union-attr]
    admit, verify = block.one("admit"), block.one("verify")
    policy = _value(block, "admit")
    if policy == "on_evict" and not root.has("host") and admit is not None:
        message = '"on_evict" needs a "host" block: blocks of an engine\'s own memory go unseen'
        setting.report.error(admit.token("policy"), message, "use always or reuse")
    times = admit.get("times") if admit else None
    if times is not None and policy != "reuse" and admit is not None:
        setting.report.error(admit.token("times"), f'"times" goes with "reuse", not "{policy}"')
    rate, segment, interval = (_value(block, n) for n in ("write_rate", "segment", "verify"))
    return Disk(
        path=_directory(block, path, setting),
        size=size,
        reuse=(times or 2) if policy == "reuse" else 1,
        write_rate=0 if rate == "off" else rate,
        io=_value(block, "io"),
        direct="never" if _value(block, "direct") == "off" else "auto",
        depth=_value(block, "depth"),
        buffers=_value(block, "buffers"),
        backlog=_value(block, "backlog"),
        segment=0 if segment == "auto" else segment,
        copy_threads=_value(block, "copy_threads"),
        sync_s=_value(block, "sync"),
        verify_s=0.0 if interval == "off" else interval,
        verify_rate=(verify.get("rate") if verify else None) or 50 << 20,
        reset=_value(block, "reset"),
    )


def _directory(block: Node, path: str, setting: Setting) -> str:
    where, node = os.path.abspath(os.path.join(setting.prefix, path)), block.one("path")
    if node is not None:
        check_place(node.token("directory"), where, "directory", setting)
    return where


def resolve_remote(root: Node, setting: Setting) -> Remote | None:
    block = root.one("remote")
    url = _required(block, "url", setting) if block else None
    if block is None or url is None:
        return None
    _check_url(block, url, setting)
    if not root.has("disk", "host"):
        hint = "blocks are sent from there, and come back there"
        setting.report.error(block.name, '"remote" needs "disk" or "host"', hint)
    region, breaker = block.one("region"), block.one("breaker")
    refresh, bundle = (_value(block, n) for n in ("refresh", "bundle"))
    bundled = block.one("bundle")
    return Remote(
        url=url,
        endpoint=_endpoint(block.one("endpoint"), setting),
        region=region.get("name") if region else "",
        access_key=secret(block.one("access_key"), "key", setting),
        secret_key=secret(block.one("secret_key"), "key", setting),
        upload=_value(block, "upload"),
        bundle=0 if bundle == "off" else bundle,
        bundle_below=(bundled.get("below") if bundled else None) or 256 << 10,
        bundle_wait_s=(bundled.get("wait") if bundled else None) or 0.2,
        timeout_s=_value(block, "timeout"),
        concurrency=_value(block, "concurrency"),
        failures=_value(block, "breaker"),
        pause_s=(breaker.get("pause") if breaker else None) or 10.0,
        slow_s=(breaker.get("slow") if breaker else None) or 0.0,
        refresh_s=0.0 if refresh == "off" else refresh,
        known_blocks=_value(block, "known_blocks"),
    )


def _check_url(block: Node, url: str, setting: Setting) -> None:
    node = block.one("url")
    assert node is not None
    scheme, mark, rest = url.partition("://")
    at = node.token("url")
    if not mark or scheme not in SCHEMES:
        hint = "write s3://BUCKET/PREFIX or file:///PATH"
        setting.report.error(at, f"{quoted(url)} is no address of an object store", hint)
    elif scheme == "file" and not rest.startswith("/"):
        setting.report.error(at, f"{quoted(url)} has no absolute path", "write file:///PATH")
    elif scheme == "file":
        check_place(at, unquote(rest), "directory", setting)
    elif _has_password(url):
        setting.report.error(at, f"{quoted(scheme + '://...')} has a password in it", KEYS)
    elif not rest.partition("/")[0]:
        setting.report.error(at, f"{quoted(url)} names no bucket", "write s3://BUCKET/PREFIX")


def _endpoint(node: Node | None, setting: Setting) -> str:
    """What the library takes for an address, and nothing that it trips over; no secret, since
    messages name it.
    """
    if node is None:
        return ""
    at, said = node.token("url"), str(node.get("url"))
    if _has_password(said):
        setting.report.error(at, '"endpoint" has a password in it', KEYS)
    elif not _is_web_address(said):
        hint = "write http://HOST:PORT or https://HOST:PORT"
        setting.report.error(at, f"{quoted(said)} is no address of a store's server", hint)
    return said


def _has_password(url: str) -> bool:
    """`user:password@` before the host."""
    authority = url.partition("://")[2].partition("/")[0]
    return ":" in authority.rpartition("@")[0]


def _is_web_address(url: str) -> bool:
    if not url.startswith(("http://", "https://")):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and not parts.query and not parts.fragment
    except ValueError:  # a port that is no number, brackets that do not close
        return False
