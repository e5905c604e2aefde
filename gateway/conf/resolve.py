"""Checked tree -> `model.Config`: the one place that knows what a whole configuration means.

Everything is looked at even after a mistake; the caller throws the result away if the report has
errors. No name is looked up on the network; certificates and secrets are read.
"""

from __future__ import annotations

import os

from gateway.conf.check import Node
from gateway.conf.errors import Report, quoted
from gateway.conf.model import Config, Server, Upstream
from gateway.conf.resolve_listen import check_listens
from gateway.conf.resolve_location import check_shared
from gateway.conf.resolve_log import log_formats
from gateway.conf.resolve_proxy import BY_MODEL
from gateway.conf.resolve_server import resolve_server
from gateway.conf.resolve_upstream import check_models, resolve_upstream
from gateway.conf.scope import Scope
from gateway.conf.setting import Names, Setting
from gateway.conf.suggest import nearest


def resolve(root: Node, file: str, setting: Setting) -> Config:
    http = root.one("http")
    if http is None:
        if not setting.report.failed:
            setting.report.error(root.name, 'there is no "http" block', "nothing would be served")
        return Config(file, (), {})
    names = _names(http, setting)
    scope = Scope((http, root))
    check_shared(scope, names, setting)
    servers = tuple(resolve_server(n, scope, names, setting) for n in http.all("server"))
    if not http.has("server"):
        setting.report.error(http.name, '"http" has no "server"', "nothing would be served")
    check_listens(http.all("server"), servers, setting.report)
    _check_body_sizes(http, servers, setting.report)
    by_model = [node for node in _passes(http) if node.get("url").endswith(BY_MODEL)]
    check_models(http.all("upstream"), by_model, setting.report)
    main = Scope((root,))
    level = main.one("error_log")
    log_path = level.get("path") if level else "stderr"
    return Config(
        file=file,
        servers=servers,
        upstreams=names.upstreams,
        worker_processes=_workers(main),
        worker_connections=_worker_connections(root, setting.report),
        shutdown_timeout_s=main.value("worker_shutdown_timeout"),
        shutdown_delay_s=main.value("shutdown_delay"),
        body_buffer_total=Scope((http,)).value("client_body_buffers_total"),
        error_log=log_path if log_path == "stderr" else os.path.join(setting.prefix, log_path),
        error_level=(level.get("level") if level else None) or "notice",
        pid=_pid(root, setting),
        prefix=setting.prefix,
        warnings=setting.report.warnings(),
    )


def _workers(main: Scope) -> int:
    value = main.value("worker_processes")
    return min(len(os.sched_getaffinity(0)), 64) if value == "auto" else int(value)


def _names(http: Node, setting: Setting) -> Names:
    upstreams: dict[str, Upstream] = {}
    for node in http.all("upstream"):
        name = node.get("name")
        if name in upstreams:
            place = upstreams[name].place
            hint = f"first in {place.file}:{place.line}" if place else ""
            setting.report.error(node.token("name"), f"duplicate upstream {quoted(name)}", hint)
            continue
        upstreams[name] = resolve_upstream(node, setting)
    formats = log_formats(http, setting.report)
    # What a wrong or misspelt statement ("upstreem") declares is not missing.
    upstreams_broken = any(nearest(name, ("upstream",)) for name in http.broken)
    return Names(upstreams, upstreams_broken, formats, "log_format" in http.broken)


def _check_body_sizes(http: Node, servers: tuple[Server, ...], report: Report) -> None:
    """A body larger than the budget of all bodies could never be buffered."""
    total = Scope((http,)).value("client_body_buffers_total")
    largest = max((x.client_max_body_size for s in servers for x in s.locations), default=0)
    node = http.one("client_body_buffers_total") or http.one("client_max_body_size")
    if largest > total:
        message = f"client_max_body_size allows {largest} bytes, client_body_buffers_total {total}"
        report.warn((node or http).name, message, "a request that large could not be buffered")


def _passes(http: Node) -> list[Node]:
    locations = [loc for server in http.all("server") for loc in server.all("location")]
    return [node for location in locations for node in location.all("proxy_pass")]


def _worker_connections(root: Node, report: Report) -> int:
    events = root.one("events")
    inside = events.one("worker_connections") if events else None
    outside = root.one("worker_connections")
    if inside is not None and outside is not None:
        hint = f"first in {outside.place.file}:{outside.place.line}"
        report.error(inside.name, '"worker_connections" is duplicate', hint)
    value: int = Scope((events or root, root)).value("worker_connections")
    return value


def _pid(root: Node, setting: Setting) -> str:
    node = root.one("pid")
    return os.path.join(setting.prefix, node.get("path")) if node else ""
