"""The life of a request, on one screen: admit → route → prompt → pick → decode → record.

`Pipeline` is the relay's gate. The express lane runs the phases at once, in `request`; whatever
needs to wait for something (a large body's scan or prompt, the list of models) goes through the
Starlette lane: the relay runs the ASGI application, whose endpoint calls `serve`, which runs the
same phases.

Invariant: every request gets one `Exchange`, kept in `request.context`, and ends in one record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gateway import admit, errors, prompt, relay_faults, route
from gateway.context import OWN_PATHS, Context
from gateway.exchange import Exchange
from gateway.fleet.responses import id_in_path
from gateway.ids import Ids
from gateway.site import policy
from gateway.site.addresses import address
from gateway.site.returned import give_back
from native import relay

if TYPE_CHECKING:
    from gateway.admit import Gatehouse
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import EngineTable
    from gateway.fleet.models import Models
    from gateway.kv.tokens import TokenSources
    from gateway.record import Recorder
    from gateway.site.fronts import Front
    from gateway.site.plan import Plan
    from native._core import Scan

EXPRESS_BODY_MAX = 1 << 20
SCAN_INLINE_MAX = 256 << 10  # larger bodies are scanned in a thread
Work = Callable[..., Awaitable[None]]


class Pipeline:
    def __init__(
        self,
        table: EngineTable,
        models: Models,
        tokens: TokenSources,
        gatehouse: Gatehouse,
        record: Recorder,
    ) -> None:
        self.table = table
        self.ledger = table.ledger
        self.models = models
        self.tokens = tokens
        self.gatehouse = gatehouse
        self.record = record
        self.stats, self.responses = record.stats, record.responses
        self.decisions = record.decisions
        self.ids = Ids()
        self._tasks: set[asyncio.Task[None]] = set()  # for error pages

    # ---- the relay's gate ----

    def head(self, client: relay.Client, request: relay.Request) -> int:
        """A request whose body is still coming: how much of it to keep."""
        exchange = self._open(client, request)
        if exchange.over:
            return int(relay.REPLIED)
        ctx = exchange.ctx
        limit = ctx.plan.max_body
        try:
            if limit and request.content_length > limit:
                raise admit.too_large(limit)
            if ctx.plan.access and not ctx.plan.access.allows(address(ctx)):
                raise admit.denied()
            if ctx.plan.kind == "proxy" and ctx.plan.target is None and ctx.path not in OWN_PATHS:
                route.aim(ctx)
        except errors.GatewayError as error:
            exchange.refuse(error, close=True)
            return int(relay.REPLIED)
        kind = request.get(b"content-type") or b""
        request.body_limit = limit  # where it is not kept, the relay counts what passes
        return admit.body_limit(ctx.plan, ctx.path, kind)

    def request(self, client: relay.Client, request: relay.Request) -> None:
        exchange = request.context or self._open(client, request)
        if exchange.over or exchange.ctx.turned:
            return
        ctx = exchange.ctx
        error = self.gatehouse.enter(ctx)
        guard = ctx.plan.guard
        if error is None and guard is not None and ctx.path not in OWN_PATHS:
            error = guard.enter(ctx)
            if error is None and ctx.delay_s:
                exchange.wait(ctx.delay_s, self._entered)
                return
        if error is not None:
            exchange.refuse(error)
        else:
            self._proceed(exchange)

    def _entered(self, exchange: Exchange) -> None:
        """A request has waited for its turn."""
        guard = exchange.ctx.plan.guard
        error = None if guard is None else guard.wait_over(exchange.ctx)
        if error is not None:
            exchange.refuse(error)
        else:
            self._proceed(exchange)

    def _proceed(self, exchange: Exchange) -> None:
        """All limits let it in."""
        ctx = exchange.ctx
        if ctx.plan.kind == "return" and ctx.path not in OWN_PATHS:
            give_back(exchange)
            return
        try:
            ctx.policy, ignored = ctx.plan.policies.read(ctx.request, address(ctx))
        except errors.GatewayError as error:
            exchange.refuse(error)
            return
        if ignored and (ctx.plan.policies or not ctx.plan.trust):
            ctx.stripped += ignored
        if _is_express(ctx):
            self._express(exchange)
        else:
            ctx.client.run_asgi(ctx.request)

    def resume(self, exchange: Exchange) -> None:
        """`error_page` led to another location, which answers instead."""
        ctx = exchange.ctx
        if ctx.plan.access and not ctx.plan.access.allows(address(ctx)):
            exchange.refuse(admit.denied())
        elif ctx.plan.kind == "return":
            give_back(exchange)
        else:
            self._express(exchange)

    def refuse(
        self, client: relay.Client, request: relay.Request, status: int, code: str, message: str
    ) -> None:
        """A fault that the relay found, or one of ours (500) that it caught."""
        exchange = request.context
        if exchange is None:
            exchange = self._exchange(client, request, client.listener.server_ctx.nowhere, b"")
        if status == 500 and not exchange.over:
            exchange.refuse(errors.InternalError(request_id=exchange.ctx.request_id), close=True)
        else:
            exchange.refuse(relay_faults.from_protocol(status, message), close=True)

    def abandoned(self, client: relay.Client, request: relay.Request) -> None:
        """The client left while no leg ran for it."""
        exchange = request.context
        if exchange is None:
            exchange = self._exchange(client, request, client.listener.server_ctx.nowhere, b"")
        exchange.abandon()

    # ---- the phases ----

    def _open(self, client: relay.Client, request: relay.Request) -> Exchange:
        """Finds the location; answers at once where there is none."""
        front: Front = client.listener.server_ctx
        plan, path = front.site.find(request.get(b"host") or b"", request.path)
        exchange = self._exchange(client, request, plan or front.nowhere, path or b"")
        if path is None:
            exchange.refuse(errors.BadRequest(what="the request path cannot be written plainly"))
        elif (plan is None or plan.kind == "none") and path not in OWN_PATHS:
            exchange.refuse(route.not_found(exchange.ctx))
        return exchange

    def _exchange(
        self, client: relay.Client, request: relay.Request, plan: Plan, path: bytes
    ) -> Exchange:
        if path not in OWN_PATHS:  # probes are not traffic
            self.stats.offer(plan.series[""])
        exchange = Exchange(self, Context(client, request, plan, path, self.ids.next()))
        request.context = exchange
        return exchange

    def _express(self, exchange: Exchange) -> None:
        """Everything at once: route, then the exchange picks, decodes and records."""
        ctx = exchange.ctx
        try:
            if ctx.plan.target is not None and route.looks_like_json(ctx):
                ctx.scan = route.read(ctx)
            seen = self._aim(ctx)
            if self.models.answers(ctx, seen):
                self._later(exchange, self.models.answer, seen)
                return
            if ctx.scan is None and route.looks_like_json(ctx):
                ctx.scan = route.read(ctx)
            self._settle(ctx, seen)
        except errors.GatewayError as error:
            exchange.refuse(error)
            return
        if ctx.kv is None or prompt.begin(ctx.kv):
            exchange.begin()
        else:
            self._later(exchange, self._finish_prompt)

    def _later(self, exchange: Exchange, work: Work, *args: bytes) -> None:
        """What has to be waited for: in the Starlette lane, or beside it for an error page."""
        ctx = exchange.ctx
        if ctx.lane == "express" and not ctx.turned:
            ctx.client.run_asgi(ctx.request)
        else:
            task = asyncio.ensure_future(work(exchange, *args))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _aim(ctx: Context) -> bytes:
        if ctx.plan.target is not None:
            route.learn(ctx)  # variables of the target may name the model
        return route.aim(ctx)

    def _settle(self, ctx: Context, seen: bytes) -> None:
        ctx.pinned = self._holder(ctx, seen)
        route.settle(ctx, seen)
        if "engine" in ctx.policy:
            ctx.pinned = route.asked_for(ctx)
        group = ctx.group
        assert group is not None
        if group.conf.kv.aware and policy.method(ctx.policy, group.conf.balance.method) == "kv":
            source = self.tokens.by_upstream.get(group.name)
            if source is not None:
                ctx.kv = prompt.of(ctx, seen, source, self.models.adapters(group.name))

    async def _finish_prompt(self, exchange: Exchange) -> None:
        """The rest of the prompt, then the pick; unless the client has left meanwhile."""
        assert exchange.ctx.kv is not None
        await prompt.finish(exchange.ctx.kv)
        if not exchange.over:
            exchange.begin()

    async def serve(self, client: relay.Client, request: relay.Request) -> None:
        """The Starlette lane. Returns when the exchange is over."""
        exchange: Exchange = request.context
        ctx = exchange.ctx
        ctx.lane = "starlette"
        if ctx.kv is not None:  # the express lane came so far
            await self._finish_prompt(exchange)
            await exchange.finished()
            return
        try:
            if ctx.plan.target is not None and route.looks_like_json(ctx):
                ctx.scan = await _read(ctx)
            seen = self._aim(ctx)
            if self.models.answers(ctx, seen):
                await self.models.answer(exchange, seen)
                return
            if ctx.scan is None and route.looks_like_json(ctx):
                ctx.scan = await _read(ctx)
            if exchange.over:  # the client left while its body was read
                return
            self._settle(ctx, seen)
        except errors.GatewayError as error:
            exchange.refuse(error)
        else:
            if ctx.kv is None or prompt.begin(ctx.kv):
                exchange.begin()
            else:
                await self._finish_prompt(exchange)
        await exchange.finished()

    def _holder(self, ctx: Context, seen: bytes) -> Engine | None:
        """The engine whose memory holds what the request refers to, where that is known."""
        held = id_in_path(seen)
        if held is None and ctx.scan is not None and ctx.scan.previous_response_id:
            held = ctx.scan.previous_response_id.encode()
        if held is None:
            return None
        engine = self.responses.find(held, self.table, ctx.request.t0)
        group = ctx.plan.group if ctx.plan.target is None else ctx.group
        return engine if engine is None or group is None or engine.upstream == group.name else None


async def _read(ctx: Context) -> Scan | None:
    body = ctx.request.body
    if body is None or len(body) <= SCAN_INLINE_MAX:
        return route.read(ctx)
    return await asyncio.get_running_loop().run_in_executor(None, route.read, ctx)


def _is_express(ctx: Context) -> bool:
    """Whether nothing can have to be waited for. Unknown paths under /kvgate/ are the
    application's.
    """
    plan = ctx.plan
    request = ctx.request
    body = request.body
    if plan.kind != "proxy" or not plan.express or ctx.path in OWN_PATHS:
        return False
    if body is None or request.version != 11 or request.chunked or len(body) > EXPRESS_BODY_MAX:
        return False
    return len(body) <= SCAN_INLINE_MAX or not admit.reads_body(plan, ctx.path)
