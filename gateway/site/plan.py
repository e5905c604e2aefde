"""A location, compiled: everything about it that can be worked out before a request comes.

Invariant: a plan is immutable once built and belongs to one configuration generation; requests
keep the plan they began with over a reload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.conf.model import (
    Config,
    ErrorPage,
    Location,
    Proxy,
    Recording,
    Return,
    Server,
    Template,
)
from gateway.fleet.catalog import Catalog
from gateway.load.goodput import Slo
from gateway.retry import Rules
from gateway.site.access import Access
from gateway.site.limits import Guard, Zones, guard
from gateway.site.made import Made, families, reads
from gateway.site.policy import OWN_PREFIX as OWN_PREFIX
from gateway.site.policy import Policies
from gateway.site.secure import Secure
from gateway.site.variables import (
    Maps,
    compile_header,
    compile_log,
    compile_text,
    header_lines,
    needs_reply,
)  # fmt: skip
from gateway.slo import set_for
from gateway.trace_log import Keyed, TraceLog, TraceSink
from native.relay import LogLine, ReplyPlan, RequestPlan

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.fleet.engines import Group
    from gateway.logs import Sink, Writer
    from gateway.stats import Statistics

Value = Callable[["Context"], bytes]
# Headers by which a stranger could pick a rank, jump the queue or speak for the gateway.
FORBIDDEN = (b"x-data-parallel-rank", b"x-vllm-priority")
# nginx adds headers without `always` to these only.
ADDED_STATUSES = frozenset({200, 201, 204, 206, 301, 302, 303, 304, 307, 308})
ALL_STATUSES = frozenset(range(200, 600))


@dataclass(frozen=True, slots=True)
class Around:
    """What the plans of one configuration share."""

    config: Config | None = None
    maps: Maps = field(default_factory=dict)
    zones: Zones = field(default_factory=Zones)


@dataclass(frozen=True, slots=True)
class Page:
    """An `error_page`, compiled; see `model.ErrorPage`."""

    status: int | None
    named: str
    uri: Callable[[Context], str] | None
    url: Callable[[Context], str] | None

    @classmethod
    def of(cls, conf: ErrorPage, maps: Maps) -> Page:
        uri = None if conf.uri is None else compile_text(conf.uri, maps)
        url = None if conf.url is None else compile_text(conf.url, maps)
        return cls(conf.status, conf.named, uri, url)


class Plan:
    """One location of one server. `kind`: proxy, return, admin, metrics or none."""

    __slots__ = (
        "_around",
        "access",
        "added",
        "added_always",
        "added_waits",
        "always_differs",
        "by_model",
        "catalog",
        "catalogs",
        "drop",
        "error_pages",
        "express",
        "group",
        "guard",
        "host",
        "kind",
        "locate",
        "location",
        "logs",
        "made",
        "max_body",
        "named",
        "path_open",
        "pattern",
        "policies",
        "receipt",
        "reply_plans",
        "request_plan",
        "returned",
        "rules",
        "scoped",
        "secure",
        "series",
        "server_name",
        "set_lines",
        "slos",
        "target",
        "tls",
        "trace",
        "trust",
        "uri",
    )

    server_name: str

    def __init__(self, location: Location, server: Server, around: Around) -> None:
        self.location = location
        self._around = around
        maps = around.maps
        self.made = Made(location, server, maps)
        self.access = Access(location.access)
        self.guard: Guard | None = guard(location.limits, around.config, around.zones, maps)
        self.policies = Policies(location)
        scope = "X-KVGate-Cache-Scope"
        self.scoped = any(header.name == scope for header in location.policy_headers)
        # The first line that names a code holds for it.
        self.error_pages: dict[int, Page] = {}
        for conf in reversed(location.error_pages):
            self.error_pages.update(dict.fromkeys(conf.codes, Page.of(conf, maps)))
        self.named: Mapping[str, Plan] = {}  # of its server
        self.locate: Callable[[bytes], Plan | None] | None = None  # likewise
        self.catalogs: Mapping[str, Catalog] = {}  # where variables give the upstream
        self.target: Callable[[Context], str] | None = None
        self.secure: Secure | None = None
        self.server_name = server.names[0] if server.names else ""
        self.series: dict[str, int] = {}  # upstream's name ("" = none) -> its row in the statistics
        self.reply_plans: dict[str, ReplyPlan] = {}  # likewise
        self.slos: dict[str, Slo] = {}  # likewise
        self.pattern = location.pattern.encode()
        self.kind = _kind(location)
        self.express = location.express
        self.max_body = location.client_max_body_size
        self.trust = location.trust_client
        self.path_open = location.engine_admin
        self.receipt = location.expose_receipt
        self.logs: tuple[tuple[LogLine, Sink, Callable[[Context], str] | None], ...] = ()
        self.trace: TraceLog | None = None
        lines = [(h.name, h.value, h.always) for h in location.add_headers]
        self.added_always = header_lines([line[:2] for line in lines if line[2]], maps)
        self.added = header_lines([line[:2] for line in lines], maps)
        self.added_waits = any(needs_reply(self._reads(h.value)) for h in location.add_headers)
        self.always_differs = not all(h.always for h in location.add_headers)
        self.returned: tuple[int, Callable[[Context], str]] | None = None
        if isinstance(location.handler, Return):
            self.returned = location.handler.status, compile_text(location.handler.text, maps)
        self.uri: bytes | None = None
        self.tls = 0
        self.by_model = False
        self.group: Group | None = None
        self.catalog: Catalog | None = None
        self.host: Value | None = None
        self.rules = Rules.of(location)
        self._compile_headers(location)

    def _compile_headers(self, location: Location) -> None:
        lines = []
        self.drop = [b"x-request-id"]
        for name, template in location.set_headers:
            lower = name.lower()
            if lower == "host":
                if template.constant != "":
                    self.host = compile_header(template, self._around.maps)
            elif lower != "x-request-id":
                self.drop.append(lower.encode())
                lines.append((name, template))
        if not self.trust:
            self.drop += FORBIDDEN
        self.set_lines = header_lines(lines, self._around.maps)
        self.request_plan = RequestPlan(self.drop)

    def open_logs(self, writer: Writer) -> None:
        """Opens the access logs and the recording. Raises OSError."""
        maps = self._around.maps
        self.trace = trace_log(self.location.recording, writer, maps)
        self.logs = tuple(
            (
                compile_log(log.format.template, log.format.escape, maps=maps),
                writer.sink(log.path, log.buffer, log.flush_s),
                None if log.condition is None else compile_text(log.condition, maps),
            )
            for log in self.location.access_logs
        )

    def _reads(self, *templates: Template | None) -> set[str]:
        config = self._around.config
        maps = {} if config is None else config.maps
        return {name for text in templates if text is not None for name in reads(text, maps)}

    def count_in(self, server: Server, stats: Statistics) -> None:
        """Opens the row for requests that get to no upstream."""
        self.series[""] = stats.open((*labels(server, self.location), ""))

    def attach(self, server: Server, catalog: Catalog, stats: Statistics) -> None:
        """Ties a proxying plan to its upstream, or where the model decides, to all."""
        proxy = self.location.handler
        assert isinstance(proxy, Proxy)
        self.uri = None if proxy.uri is None else proxy.uri.encode()
        self.tls = int(proxy.scheme == "https")
        self.by_model = not proxy.upstream
        if proxy.target is not None:
            self.target = compile_text(proxy.target, self._around.maps)
        self.catalog = catalog
        if not (self.by_model and self.target):
            self.group = catalog.groups[0] if len(catalog.groups) == 1 else None
        for group in catalog.groups:
            series = stats.open((*labels(server, self.location), group.name))
            self.series[group.name] = series
            self.slos[group.name] = slo = set_for(group.conf.kv, self.location.slo)
            stats.mark(series, slo)
            self.reply_plans[group.name] = reply = self._reply_plan(group, series, stats)
            reply.count_as(series, slo.ttft_s, slo.tpot_s, slo.e2el_s)

    def names(self, ctx: Context) -> Catalog:
        """The names of models that a request may use here."""
        if self.target is not None and ctx.group is not None:
            return self.catalogs[ctx.group.name]
        assert self.catalog is not None
        return self.catalog

    def _reply_plan(self, group: Group, series: int, stats: Statistics) -> ReplyPlan:
        location = self.location
        return ReplyPlan(
            {b"x-request-id", *(name.lower().encode() for name in location.hide_headers)},
            passed=[name.encode() for name in location.pass_headers],
            connect_s=location.connect_timeout_s,
            send_s=location.send_timeout_s,
            first_byte_s=location.first_byte_timeout_s,
            read_s=location.read_timeout_s,
            total_s=location.total_timeout_s,
            hook_statuses=self._hooked(group),
            itl=stats.gaps(series),
            itl_bounds=stats.gap_bounds,
        )

    def _hooked(self, group: Group) -> frozenset[int]:
        """The statuses at which the pipeline must look before a reply goes out."""
        location = self.location
        if self.added_waits:
            return ALL_STATUSES
        texts = [log.format.template for log in location.access_logs]
        texts += [log.condition for log in location.access_logs if log.condition]
        if families(self._reads(*texts)) & {"upstream_http_", "sent_http_"}:
            return ALL_STATUSES
        # 502 to 504: a Retry-After there tells load from failure.
        hooked = self.rules.statuses | {502, 503, 504}
        if group.conf.disaggregation.wanted:
            hooked |= {500}  # a hand-over that failed
        if self.always_differs:
            hooked |= ALL_STATUSES - ADDED_STATUSES
        return frozenset(hooked)


def labels(server: Server, location: Location) -> tuple[str, str]:
    """What server and location are called in statistics."""
    name = server.names[0] if server.names else ""
    if not name and server.listens:
        name = server.listens[0].address
    return name, f"{location.modifier} {location.pattern}".strip()


def trace_log(conf: Recording | None, writer: Writer, maps: Maps) -> TraceLog | None:
    """Raises OSError."""
    if conf is None:
        return None
    sink = writer.of(conf.path, TraceSink)
    sink.begin(conf.block)
    who = compile_text(conf.client, maps), compile_text(conf.session, maps)
    return TraceLog(sink, Keyed(conf.secret), conf.block, who)


def _kind(location: Location) -> str:
    if isinstance(location.handler, Proxy):
        return "proxy"
    return "return" if isinstance(location.handler, Return) else location.handler
