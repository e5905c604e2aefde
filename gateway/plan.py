"""A location, compiled: everything about it that can be worked out before a request comes.

Invariant: a plan is immutable once built and belongs to one configuration generation; requests
keep the plan they began with over a reload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gateway.catalog import Catalog
from gateway.conf import variables
from gateway.conf.model import Location, Proxy, Return, Server, Template, Var
from gateway.retry import Rules
from gateway.variables import compile_header, compile_log, compile_text, needs_reply
from native.relay import LogLine, ReplyPlan, RequestPlan

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.engines import Group
    from gateway.logs import Sink, Writer
    from gateway.stats import Statistics

Value = Callable[["Context"], bytes]
# Headers by which a stranger could pick a rank, jump the queue or speak for the gateway.
FORBIDDEN = (b"x-data-parallel-rank", b"x-vllm-priority")
OWN_PREFIX = b"x-kvgate-"
# nginx adds headers without `always` to these only.
ADDED_STATUSES = frozenset({200, 201, 204, 206, 301, 302, 303, 304, 307, 308})
ALL_STATUSES = frozenset(range(200, 600))


class HeaderLines:
    """Header lines to add: constant ones as one piece, the others evaluated per request."""

    __slots__ = ("_constant", "_dynamic")

    def __init__(self, headers: Iterable[tuple[str, Template]]) -> None:
        constant = []
        dynamic: list[tuple[bytes, Value]] = []
        for name, template in headers:
            if template.constant is not None:
                if template.constant:
                    constant.append(f"{name}: {template.constant}\r\n".encode("latin-1"))
            else:
                dynamic.append((name.encode(), compile_header(template)))
        self._constant = b"".join(constant)
        self._dynamic = tuple(dynamic)

    def render(self, ctx: Context) -> bytes:
        """`name: value CR LF …`; a header whose value is empty is left out, as in nginx."""
        if not self._dynamic:
            return self._constant
        lines = [self._constant]
        for name, read in self._dynamic:
            value = read(ctx)
            if value:
                lines.append(b"%b: %b\r\n" % (name, value))
        return b"".join(lines)


class Plan:
    """One location of one server. `kind`: proxy, return, admin, metrics or none."""

    __slots__ = (
        "added",
        "added_always",
        "added_waits",
        "always_differs",
        "by_model",
        "catalog",
        "drop",
        "express",
        "group",
        "host",
        "kind",
        "location",
        "logs",
        "max_body",
        "path_open",
        "pattern",
        "receipt",
        "reply_plans",
        "request_plan",
        "returned",
        "rules",
        "series",
        "server_name",
        "set_lines",
        "tls",
        "trust",
        "uri",
    )

    server_name: str

    def __init__(self, location: Location, server: Server) -> None:
        self.location = location
        self.server_name = server.names[0] if server.names else ""
        self.series: dict[str, int] = {}  # upstream's name ("" = none) -> its row in the statistics
        self.reply_plans: dict[str, ReplyPlan] = {}  # likewise
        self.pattern = location.pattern.encode()
        self.kind = _kind(location)
        self.express = location.express
        self.max_body = location.client_max_body_size
        self.trust = location.trust_client
        self.path_open = location.engine_admin
        self.receipt = location.expose_receipt
        self.logs: tuple[tuple[LogLine, Sink], ...] = ()
        self.added_always = HeaderLines((h.name, h.value) for h in location.add_headers if h.always)
        self.added = HeaderLines((h.name, h.value) for h in location.add_headers)
        self.added_waits = any(needs_reply(h.value) for h in location.add_headers)
        self.always_differs = not all(h.always for h in location.add_headers)
        self.returned: tuple[int, Callable[[Context], str]] | None = None
        if isinstance(location.handler, Return):
            self.returned = location.handler.status, compile_text(location.handler.text)
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
                    self.host = compile_header(template)
            elif lower != "x-request-id":
                self.drop.append(lower.encode())
                lines.append((name, template))
        if not self.trust:
            self.drop += FORBIDDEN
        self.set_lines = HeaderLines(lines)
        self.request_plan = RequestPlan(self.drop)

    def open_logs(self, writer: Writer) -> None:
        """Opens the access logs. Raises OSError."""
        self.logs = tuple(
            (compile_log(log.format.template, log.format.escape), writer.sink(log.path))
            for log in self.location.access_logs
        )

    def count_in(self, server: Server, stats: Statistics) -> None:
        """Opens the row for requests that get to no upstream."""
        self.series[""] = stats.open((*self._labels(server), ""))

    def attach(self, server: Server, catalog: Catalog, stats: Statistics) -> None:
        """Ties a proxying plan to its upstream, or where the model decides, to all."""
        proxy = self.location.handler
        assert isinstance(proxy, Proxy)
        self.uri = None if proxy.uri is None else proxy.uri.encode()
        self.tls = int(proxy.scheme == "https")
        self.by_model = not proxy.upstream
        self.catalog = catalog
        self.group = catalog.groups[0] if len(catalog.groups) == 1 else None
        for group in catalog.groups:
            series = stats.open((*self._labels(server), group.name))
            self.series[group.name] = series
            self.reply_plans[group.name] = self._reply_plan(series, stats)

    def _labels(self, server: Server) -> tuple[str, str]:
        name = self.server_name or (server.listens[0].address if server.listens else "")
        return name, f"{self.location.modifier} {self.location.pattern}".strip()

    def _reply_plan(self, series: int, stats: Statistics) -> ReplyPlan:
        location = self.location
        return ReplyPlan(
            {b"x-request-id", *(name.lower().encode() for name in location.hide_headers)},
            passed=[name.encode() for name in location.pass_headers],
            connect_s=location.connect_timeout_s,
            send_s=location.send_timeout_s,
            first_byte_s=location.first_byte_timeout_s,
            read_s=location.read_timeout_s,
            total_s=location.total_timeout_s,
            hook_statuses=self._hooked(),
            itl=stats.gaps(series),
            itl_bounds=stats.gap_bounds,
        )

    def _hooked(self) -> frozenset[int]:
        """The statuses at which the pipeline must look before a reply goes out."""
        location = self.location
        if self.added_waits:
            return ALL_STATUSES
        if any(_reads_headers(log.format.template) for log in location.access_logs):
            return ALL_STATUSES
        # 502 to 504: a Retry-After there tells load from failure.
        hooked = self.rules.statuses | {502, 503, 504}
        if self.always_differs:
            hooked |= ALL_STATUSES - ADDED_STATUSES
        return frozenset(hooked)


def _kind(location: Location) -> str:
    if isinstance(location.handler, Proxy):
        return "proxy"
    return "return" if isinstance(location.handler, Return) else location.handler


def _reads_headers(template: Template) -> bool:
    for part in template.parts:
        if isinstance(part, Var):
            found = variables.find(part.name)
            if found is not None and found.name in ("upstream_http_", "sent_http_"):
                return True
    return False
