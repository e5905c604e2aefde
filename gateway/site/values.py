"""The value of every variable, read from a request's context: nginx's names, and ours.

Each returns text (bytes read as latin-1) or None for "no value". They run after the request has
ended or before its reply began, so each must cope with slots that are not written.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway import __version__
from gateway.paths import plain
from gateway.site.addresses import address, packed, split
from gateway.spent import shown

if TYPE_CHECKING:
    from gateway.context import Attempt, Context

Getter = Callable[["Context"], "str | None"]
_HOSTNAME = socket.gethostname().lower()


class _Wall:
    """The written forms of the current second, made once per second."""

    __slots__ = ("iso8601", "local", "second")

    def __init__(self) -> None:
        self.second = -1
        self.local = self.iso8601 = ""

    def at(self, now: int) -> _Wall:
        if now != self.second:
            local = time.localtime(now)
            zone = time.strftime("%z", local)
            self.second = now
            self.local = time.strftime("%d/%b/%Y:%H:%M:%S ", local) + zone
            self.iso8601 = time.strftime("%Y-%m-%dT%H:%M:%S", local) + f"{zone[:3]}:{zone[3:]}"
        return self


_wall = _Wall()


def wall(now: int) -> tuple[str, str]:
    """`$time_local` and `$time_iso8601` of a moment in Unix seconds."""
    made = _wall.at(now)
    return made.local, made.iso8601


def request_header(name: str) -> Getter:
    """`$http_NAME`: all headers of the name, joined as nginx does."""
    raw = name.lower().replace("_", "-").encode()

    return lambda ctx: _text(ctx.request.joined(raw))


def _reply_header(ctx: Context, raw: bytes) -> str | None:
    if ctx.leg is None:
        return None
    found = [value for name, value in ctx.leg.reply_headers or () if name.lower() == raw]
    return b", ".join(found).decode("latin-1") if found else None


def upstream_header(name: str) -> Getter:
    """`$upstream_http_NAME`: a header of the engine's reply, the last engine asked."""
    raw = name.lower().replace("_", "-").encode()
    return lambda ctx: _reply_header(ctx, raw)


def sent_header(name: str) -> Getter:
    """`$sent_http_NAME`: a header the client got. Those that pass unchanged are the engine's."""
    raw = name.lower().replace("_", "-").encode()

    def get(ctx: Context) -> str | None:
        if ctx.error is not None and not ctx.turned:
            for header, value in ctx.error.headers():
                if header == raw:
                    return value.decode("latin-1")
            return None
        return _reply_header(ctx, raw)

    return get


def argument(name: str) -> Getter:
    """`$arg_NAME`: the first argument of that name in the query, as sent."""
    raw = name.lower().encode()

    def get(ctx: Context) -> str | None:
        for pair in (ctx.request.query or b"").split(b"&"):
            key, equals, value = pair.partition(b"=")
            if equals and key.lower() == raw:
                return value.decode("latin-1")
        return None

    return get


def cookie(name: str) -> Getter:
    raw = name.encode()

    def get(ctx: Context) -> str | None:
        for pair in (ctx.request.joined(b"cookie") or b"").split(b";"):
            key, equals, value = pair.strip().partition(b"=")
            if equals and key == raw:
                return value.decode("latin-1")
        return None

    return get


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("latin-1")


def _host(ctx: Context) -> str:
    value = _text(ctx.request.get(b"host")) or ""
    if value.startswith("["):
        return value[: value.find("]") + 1].lower()
    return value.partition(":")[0].lower()


def _request_line(ctx: Context) -> str:
    request = ctx.request
    line = request.method + b" " + request.target
    return line.decode("latin-1") + (" HTTP/1.1" if request.version == 11 else " HTTP/1.0")


def _forwarded_for(ctx: Context) -> str:
    before = _text(ctx.request.joined(b"x-forwarded-for"))
    last = address(ctx)
    return f"{before}, {last}" if before else last


def _request_length(ctx: Context) -> str:
    request = ctx.request
    length = len(request.body) if request.body is not None else max(request.content_length, 0)
    return str(request.head_bytes + length)


def _since_arrival(ctx: Context, moment: float) -> str | None:
    return f"{moment - ctx.request.t0:.3f}" if moment else None


def _tried(ctx: Context, read: Callable[[Attempt], str]) -> str | None:
    """One value per leg, in order; nothing when no engine was asked."""
    attempts = ctx.attempts
    if len(attempts) == 1:
        return read(attempts[0])
    return ", ".join(read(attempt) for attempt in attempts) if attempts else None


def _span(start: float, end: float) -> str:
    return f"{end - start:.3f}" if start and end else "-"


def _upstream_addr(ctx: Context) -> str | None:
    """Every engine that was tried, and the one that is being asked: it joins `attempts` only when
    its leg has ended, after the reply's header was made.
    """
    asked = [attempt.engine for attempt in ctx.attempts]
    if ctx.engine is not None and (not asked or asked[-1] is not ctx.engine):
        asked.append(ctx.engine)
    return ", ".join(engine.address for engine in asked) or None


def _upstream_status(ctx: Context) -> str | None:
    if not ctx.attempts and ctx.leg is not None and ctx.leg.status:
        return str(ctx.leg.status)
    return _tried(ctx, lambda a: str(a.status))


def _ttft(ctx: Context) -> str | None:
    leg = ctx.leg
    return _since_arrival(ctx, leg.t_first) if leg is not None and leg.sse else None


def _time(at: int) -> Getter:
    """A time of `Leg.times`."""

    def get(ctx: Context) -> str | None:
        if ctx.leg is None:
            return None
        value = ctx.leg.times(ctx.request.t0, 0.0, True)[at]
        return f"{value:.3f}" if value >= 0 else None

    return get


def _itl_max(ctx: Context) -> str | None:
    leg = ctx.leg
    return f"{leg.itl_max:.6f}" if leg is not None and leg.sse else None


def _tpot(ctx: Context) -> str | None:
    leg = ctx.leg
    if leg is None or not leg.sse or not leg.t_first:
        return None
    tokens = leg.completion_tokens if leg.completion_tokens >= 0 else leg.chunks
    return f"{(leg.t_last - leg.t_first) / (tokens - 1):.6f}" if tokens > 1 else None


def _leg_count(read: Callable[[object], int]) -> Getter:
    def get(ctx: Context) -> str | None:
        if ctx.leg is None:
            return None
        value = read(ctx.leg)
        return None if value < 0 else str(value)

    return get


TABLE: dict[str, Getter] = {
    # the request
    "request": _request_line,
    "request_method": lambda c: _text(c.request.method),
    "request_uri": lambda c: _text(c.request.target),
    "uri": lambda c: _text(c.path or plain(c.request.path) or c.request.path),
    "args": lambda c: _text(c.request.query),
    "query_string": lambda c: _text(c.request.query),
    "is_args": lambda c: "?" if c.request.query else "",
    "host": _host,
    "scheme": lambda c: "https" if c.client.tls else "http",
    "https": lambda c: "on" if c.client.tls else "",
    "server_protocol": lambda c: "HTTP/1.1" if c.request.version == 11 else "HTTP/1.0",
    "content_type": request_header("content-type"),
    "content_length": request_header("content-length"),
    "request_length": _request_length,
    "request_id": lambda c: c.request_id,
    "client_request_id": request_header("x-request-id"),
    # the connection
    "remote_addr": address,
    "remote_port": lambda c: split(c.client.peer)[1],
    "remote_user": lambda c: None,
    "binary_remote_addr": lambda c: packed(c).decode("latin-1"),
    "connection": lambda c: str(id(c.client)),
    "server_addr": lambda c: split(c.client.local)[0],
    "server_port": lambda c: split(c.client.local)[1],
    "server_name": lambda c: c.plan.server_name,
    "connection_requests": lambda c: str(c.client.requests),
    "hostname": lambda c: _HOSTNAME,
    "pid": lambda c: str(os.getpid()),
    "nginx_version": lambda c: __version__,
    "lane": lambda c: c.lane,
    # the reply
    "status": lambda c: f"{c.status:03d}" if c.status else "000",
    "body_bytes_sent": lambda c: str(c.bytes_sent),
    "bytes_sent": lambda c: str(c.bytes_sent),
    "request_time": lambda c: f"{c.t_end - c.request.t_head:.3f}" if c.t_end else "0.000",
    "request_completion": lambda c: "OK" if c.termination == "--" else "",
    "termination": lambda c: c.termination,
    "error_code": lambda c: c.error.code if c.error is not None else None,
    # time
    "time_local": lambda c: _wall.at(int(time.time())).local,
    "time_iso8601": lambda c: _wall.at(int(time.time())).iso8601,
    "msec": lambda c: f"{time.time():.3f}",
    # upstream
    "proxy_host": lambda c: c.group.name if c.group is not None else None,
    "proxy_add_x_forwarded_for": _forwarded_for,
    "upstream_name": lambda c: c.group.name if c.group is not None else None,
    "upstream_by_model": lambda c: c.group.name if c.group is not None else None,
    "upstream_addr": _upstream_addr,
    "upstream_status": _upstream_status,
    "upstream_connect_time": lambda c: _tried(c, lambda a: _span(a.leg.t_start, a.leg.t_connected)),
    "upstream_header_time": lambda c: _tried(c, lambda a: _span(a.leg.t_start, a.leg.t_head)),
    "upstream_response_time": lambda c: _tried(c, lambda a: _span(a.leg.t_start, a.leg.t_end)),
    "upstream_bytes_sent": lambda c: _tried(c, lambda a: str(a.leg.bytes_sent)),
    "upstream_bytes_received": lambda c: _tried(c, lambda a: str(a.leg.bytes_received)),
    "attempts": lambda c: str(len(c.attempts) + (not c.t_end and c.engine is not None)),
    # inference
    "model": lambda c: c.model[:256] or None,  # a client's text: bounded in a line
    "stream": lambda c: "1" if c.scan is not None and c.scan.stream else "0",
    "engine": lambda c: c.engine.address if c.engine is not None else None,
    "ttft": _ttft,
    "ttft_choice": _time(5),
    "tpot": _tpot,
    "e2el": _time(2),
    "end": lambda c: c.end or None,
    "slo": lambda c: c.word or None,
    "slo_broken": lambda c: ",".join(c.broken) or None,
    "spent": shown,
    "itl_max": _itl_max,
    "chunks": _leg_count(lambda leg: leg.chunks),  # type: ignore[attr-defined]
    "prompt_tokens": _leg_count(lambda leg: leg.prompt_tokens),  # type: ignore[attr-defined]
    "completion_tokens": _leg_count(lambda leg: leg.completion_tokens),  # type: ignore[attr-defined]
    "cached_tokens": _leg_count(lambda leg: leg.cached_tokens),  # type: ignore[attr-defined]
}
