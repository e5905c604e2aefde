"""The ASGI side: the endpoint table, and the Starlette lane for everything that is proxied.

    /kvgate/health   200 while the process serves           every listener
    /kvgate/ready    200 or 503 with the reason             every listener
    /kvgate/status   JSON                                   `admin` locations
    /kvgate/, /kvgate/page/FILE    the dashboard            `admin` locations
    /kvgate/live                   its event stream         `admin` locations
    /kvgate/upstreams              GET: JSON                `admin` locations
    /kvgate/upstreams/NAME/servers POST: a run-time change  `admin` locations
    /kvgate/explain                POST: a decision         `admin` locations
    /kvgate/roles                  GET, POST: who prefills  `admin` locations
    any path         Prometheus' text format                `metrics` locations
    any other        the pipeline                           `proxy_pass` locations

Invariants: admin endpoints answer on unix sockets or to the location's token only, and never to
another site's page; whatever is answered here is recorded once, as everything else is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import errors, replies
from gateway.admin_access import CLIENT
from gateway.admit import denied
from gateway.context import OWN_PATHS
from gateway.dashboard.pages import Pages
from gateway.disagg import roles
from gateway.explain import Explainer
from gateway.process.orders import Answer
from native.relay import AsgiClient

if TYPE_CHECKING:
    from gateway.exchange import Exchange
    from gateway.pipeline import Pipeline
    from gateway.process.server import Listener
    from gateway.site.plan import Plan
    from gateway.status import Status

Ask = Callable[[dict[str, Any]], Awaitable[Answer]]

REQUEST = "kvgate.request"


class Api:
    """The handlers. Each checks the plan of the location that the request came to."""

    def __init__(
        self,
        pipeline: Pipeline,
        status: Status,
        metrics: CollectorRegistry,
        pages: Pages,
        ask: Ask | None,
    ) -> None:
        self._pipeline = pipeline
        self._explainer = Explainer(
            pipeline.table, pipeline.models, pipeline.tokens, pipeline.decisions
        )
        self._status = status
        self._metrics = metrics
        self._pages = pages
        self._ask = ask

    def routes(self) -> list[BaseRoute]:
        return [
            Proxied(self._pipeline),
            Route("/kvgate/health", self.health),
            Route("/kvgate/ready", self.ready),
            Route("/kvgate/status", self.status),
            Route("/kvgate/upstreams", self.upstreams),
            Route("/kvgate/upstreams/{name}/servers", self.change, methods=["POST"]),
            Route("/kvgate/explain", self.explain, methods=["POST"]),
            *self._pages.routes(),
            Route("/kvgate/roles", self.roles, methods=["GET", "POST"]),
            Route("/{path:path}", Rest(self)),
        ]

    async def health(self, request: Request) -> Response:
        return replies.json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        reason = self._status.unready(monotonic())
        if reason:
            response = replies.json({"ready": False, "reason": reason}, 503)
            response.headers["retry-after"] = "1"
            return response
        return replies.json({"ready": True})

    async def status(self, request: Request) -> Response:
        return replies.refusal(request) or replies.json(self._status.document(monotonic()))

    async def upstreams(self, request: Request) -> Response:
        return replies.refusal(request) or replies.json(self._status.upstreams())

    async def explain(self, request: Request) -> Response:
        """`{"request": {...}, "path": "/v1/...", "upstream": NAME, "headers": {...}}`."""
        refusal = replies.refusal(request)
        if refusal is not None:
            return refusal
        try:
            return replies.json(await self._explainer.document(replies.read(await request.body())))
        except errors.GatewayError as error:
            return replies.error(error)

    async def roles(self, request: Request) -> Response:
        """Who prefills and who answers; POST: after `{"upstream", "server", "role"}` is done."""
        refusal, posted = replies.refusal(request), request.method == "POST"
        try:
            body = replies.read(await request.body()) if posted and refusal is None else None
            return refusal or replies.json(roles.answer(self._pipeline.table, body))
        except errors.GatewayError as error:
            return replies.error(error)

    async def change(self, request: Request) -> Response:
        """`{"action": "add|remove|drain|ready|down", "server": "HOST:PORT", "params": {...}}`;
        answers when every worker has made the change.
        """
        refusal = replies.refusal(request)
        if refusal is not None:
            return refusal
        try:
            change = replies.read(await request.body())
        except errors.InvalidJson as error:
            return replies.error(error)
        if self._ask is None:
            return replies.error(errors.BadRequest(what="this process has no master"))
        answer = await self._ask({**change, "upstream": request.path_params["name"]})
        if answer.error:
            return replies.error(errors.BadRequest(what=answer.error), 404 if answer.missing else 0)
        return replies.json(self._status.upstreams())

    def metrics(self) -> Response:
        text = generate_latest(self._metrics)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


class Proxied(BaseRoute):
    """Whatever a `proxy_pass` location takes. It comes first and looks at no pattern: this is the
    Starlette lane of all traffic.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or scope[replies.PLAN].kind != "proxy" or scope[REQUEST] is None:
            return Match.NONE, {}
        return (Match.NONE if scope["raw_path"] in OWN_PATHS else Match.FULL), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._pipeline.serve(scope["extensions"][CLIENT], scope[REQUEST])

    def url_path_for(self, name: str, /, **path_params: object) -> NoReturn:
        raise NoMatchFound(name, path_params)


class Rest:
    """The catch-all endpoint of what is not proxied."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plan: Plan = scope[replies.PLAN]
        if plan.kind == "metrics" and scope["method"] in ("GET", "HEAD"):
            await self._api.metrics()(scope, receive, send)
        else:
            await replies.error(replies.nothing(Request(scope)))(scope, receive, send)


class Application(Starlette):
    """Starlette without its two error middlewares: faults are the relay's to answer and log, and
    `Recorded` turns what routing refuses into our shape.
    """

    def build_middleware_stack(self) -> Router:
        return self.router


class Recorded:
    """Outermost: ties the request to its plan, records what the endpoints answered themselves."""

    def __init__(self, app: ASGIApp, pipeline: Pipeline) -> None:
        self._app = app
        self._pipeline = pipeline
        self.listener: Listener | None = (
            None  # what another ASGI server's requests are taken to come to
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = scope.get("extensions", {}).get(REQUEST)
        scope[REQUEST] = request
        if request is None:
            await self._foreign(scope, receive, send)
            return
        exchange = request.context
        if exchange.over:  # the client left before its turn came
            return
        plan = scope[replies.PLAN] = exchange.ctx.plan
        if plan.kind == "proxy" and scope["raw_path"] not in OWN_PATHS:
            await self._app(scope, receive, send)  # the exchange records itself
        else:
            await self._counted(scope, receive, send, exchange)

    async def _counted(
        self, scope: Scope, receive: Receive, send: Send, exchange: Exchange
    ) -> None:
        """An endpoint that answers with `send`: what it sent is recorded."""
        status = sent = 0

        async def counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        await _answer(self._app, scope, receive, counted)
        exchange.answered(status, sent)

    async def _foreign(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Under another ASGI server: the relay writes through `send`."""
        assert self.listener is not None
        front = self.listener.server_ctx
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        raw = scope.get("raw_path") or scope["path"].encode()
        plan, _ = front.site.find(host, raw)  # type: ignore[attr-defined]
        address = (scope.get("client") or ("unix:",))[0]
        if plan is not None and plan.access and not plan.access.allows(address):
            await replies.error(denied())(scope, receive, send)
        elif (plan is not None and plan.kind in ("admin", "metrics")) or scope["path"].startswith(
            "/kvgate/"
        ):
            scope[replies.PLAN] = plan or front.nowhere  # type: ignore[attr-defined]
            await _answer(self._app, scope, receive, send)
        else:
            await AsgiClient(scope, receive, send, self._pipeline, self.listener).run()


async def _answer(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    try:
        await app(scope, receive, send)
    except HTTPException as refused:  # by Starlette's routing: a method that an endpoint lacks
        error = errors.MethodNotAllowed(method=scope["method"], path=scope["path"][:200])
        response = replies.error(error)
        response.headers.update(refused.headers or {})
        await response(scope, receive, send)


def build(
    pipeline: Pipeline,
    status: Status,
    metrics: CollectorRegistry,
    pages: Pages,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
    ask: Ask | None = None,
) -> Recorded:
    """The ASGI application. `ask` takes changes of upstreams to the master."""
    api = Api(pipeline, status, metrics, pages, ask)
    return Recorded(Application(routes=api.routes(), lifespan=lifespan), pipeline)
