"""What browsers are given under `/kvgate/` of an `admin` location: the page, its files, the stream.

Invariants: the page and its files are the same for everyone and hold nothing of this gateway, so
they need no token (a browser has none to send before there is a page that asks for it); what the
gateway knows goes through the stream only, under the rules of every other admin endpoint. Files
are named by a closed set, and no page of ours may load anything from elsewhere.
"""

from __future__ import annotations

import asyncio
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gateway import charts, errors, replies
from gateway.admin_access import page_refusal
from gateway.dashboard.readings import Reader
from gateway.dashboard.watch import Stream, Watch

if TYPE_CHECKING:
    from gateway.dashboard.receipts import Receipts
    from gateway.fleet.engines import EngineTable
    from gateway.process.memory import Memory
    from gateway.status import Status

_KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_OURS = (
    "index.html", "dashboard.css", "dashboard.js", "engines.js", "feed.js", "figures.js",
    "history.js", "icon.svg", "plots.js", "tables.js",
)  # fmt: skip
INDEX = "index.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ALWAYS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": POLICY,
}


_STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "x-accel-buffering": "no",  # of an nginx between
    **_ALWAYS,
}


class Pages:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._files = {name: _read(name) for name in _OURS}
        self._files["uplot.js"] = charts.script().encode()
        self._files["uplot.css"] = charts.style().encode()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/kvgate/", self.page),
            Route("/kvgate/page/{name}", self.page),
            Route("/kvgate/live", self.live),
        ]

    async def page(self, request: Request) -> Response:
        """The page, or one of its files."""
        name = request.path_params.get("name", INDEX)
        body, plan = self._files.get(name), request.scope[replies.PLAN]
        if plan.kind != "admin" or body is None:
            return replies.error(replies.nothing(request))
        refused = page_refusal(request)
        if refused is not None:
            return replies.error(refused)
        kind = _KINDS[name.rpartition(".")[2]]
        return Response(body, headers={"content-type": kind, **_ALWAYS})

    async def live(self, request: Request) -> Response:
        """Snapshots, one a second for as long as the client stays."""
        refused = replies.refusal(request)
        if refused is not None:
            return refused
        if request.method == "HEAD":
            return Response(headers=_STREAM_HEADERS)
        try:
            return Events(self._watch)
        except errors.GatewayError as error:
            return replies.error(error)


def build(status: Status, table: EngineTable, memory: Memory, receipts: Receipts) -> Pages:
    """The dashboard of a worker."""
    reader = Reader(status, table, memory)
    return Pages(Watch(reader, receipts, partial(memory.stats.say, "dashboards")))


class Events(Response):
    """A reply without an end, until its client leaves or the worker does. Raises what
    `Watch.open` raises.
    """

    def __init__(self, watch: Watch) -> None:
        self.status_code = 200
        self.init_headers(_STREAM_HEADERS)
        self._watch = watch
        self._stream = watch.open()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = self._stream
        gone = asyncio.ensure_future(_left(receive, stream))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in stream:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            self._watch.close(stream)


async def _left(receive: Receive, stream: Stream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.end()


def _read(name: str) -> bytes:
    return files("gateway.dashboard").joinpath("page", name).read_bytes()
