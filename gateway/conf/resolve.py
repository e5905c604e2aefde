"""Checked tree -> `model.Config`: the one place that knows what a whole configuration means.

Everything is looked at even after a mistake; the caller throws the result away if the report has
errors. No name is looked up on the network; certificates and secrets are read.
"""

from __future__ import annotations

from gateway.conf import resolve_process as process
from gateway.conf.errors import Report, quoted
from gateway.conf.model import Config, Server, Upstream
from gateway.conf.node import Node
from gateway.conf.places import written_file
from gateway.conf.resolve_limits import resolve_zones
from gateway.conf.resolve_listen import check_listens
from gateway.conf.resolve_location import check_shared
from gateway.conf.resolve_log import log_formats
from gateway.conf.resolve_proxy import BY_MODEL
from gateway.conf.resolve_server import resolve_server
from gateway.conf.resolve_upstream import check_models, resolve_upstream
from gateway.conf.resolve_variables import resolve_maps
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
    _check_daemon(root, setting.report)
    check_listens(http.all("server"), servers, setting.report)
    _check_body_sizes(http, servers, setting.report)
    by_model = [node for node in _passes(http) if node.get("url").endswith(BY_MODEL)]
    check_models(http.all("upstream"), by_model, setting.report)
    main = Scope((root,))
    log = Scope((http, root)).one("error_log")
    run_as = process.user(root, setting.report)
    limit = root.one("worker_rlimit_nofile")
    return Config(
        file=file,
        servers=servers,
        upstreams=names.upstreams,
        worker_processes=process.workers(main),
        worker_connections=process.worker_connections(root, setting.report),
        shutdown_timeout_s=main.value("worker_shutdown_timeout"),
        shutdown_delay_s=main.value("shutdown_delay"),
        body_buffer_total=Scope((http,)).value("client_body_buffers_total"),
        kv_index_bytes=Scope((http,)).value("kv_index_size"),
        error_log=written_file(log, setting, ("stderr",)) or "stderr",
        error_level=(log.get("level") if log else None) or "notice",
        pid=written_file(root.one("pid"), setting),
        prefix=setting.prefix,
        maps=names.maps,
        conn_zones=names.conn_zones,
        req_zones=names.req_zones,
        user=run_as[0],
        group=run_as[1],
        rlimit_nofile=limit.get("number") if limit else 0,
        env=process.environment(root, setting.report),
        warnings=setting.report.warnings(),
    )


def _names(http: Node, setting: Setting) -> Names:
    maps = resolve_maps(http, setting)
    upstreams: dict[str, Upstream] = {}
    for node in http.all("upstream"):
        name = node.get("name")
        if name in upstreams:
            place = upstreams[name].place
            hint = f"first in {place.file}:{place.line}" if place else ""
            setting.report.error(node.token("name"), f"duplicate upstream {quoted(name)}", hint)
            continue
        upstreams[name] = resolve_upstream(node, setting)

    def broken(directive: str) -> bool:
        """What a wrong or misspelt statement ("upstreem") declares is not missing."""
        return any(nearest(name, (directive,)) for name in http.broken)

    return Names(
        upstreams=upstreams,
        upstreams_broken=broken("upstream"),
        maps=maps,
        formats=log_formats(http, setting),
        formats_broken=broken("log_format"),
        conn_zones=resolve_zones(http, "limit_conn_zone", setting),
        conn_zones_broken=broken("limit_conn_zone"),
        req_zones=resolve_zones(http, "limit_req_zone", setting),
        req_zones_broken=broken("limit_req_zone"),
    )


def _check_body_sizes(http: Node, servers: tuple[Server, ...], report: Report) -> None:
    """A body larger than the budget of all bodies could never be buffered."""
    total = Scope((http,)).value("client_body_buffers_total")
    sizes = [x.client_max_body_size for server in servers for x in server.locations]
    largest = max(sizes, default=0)
    node = http.one("client_body_buffers_total") or http.one("client_max_body_size")
    if largest > total:
        message = f"client_max_body_size allows {largest} bytes, client_body_buffers_total {total}"
        report.warn((node or http).name, message, "a request that large could not be buffered")


def _passes(http: Node) -> list[Node]:
    found: list[Node] = []
    blocks = list(http.all("server"))
    while blocks:
        block = blocks.pop()
        found += block.all("proxy_pass")
        blocks += block.all("location")
    return found


def _check_daemon(root: Node, report: Report) -> None:
    node = root.one("daemon")
    if node is not None and node.get("on"):
        hint = "remove it: the service manager keeps kvgate in the background"
        report.error(node.token("on"), '"daemon on" is not available', hint)
