"""The endpoint table of the simulated engine, and its life from listening to closed."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping

from . import admin, chat, completions, embeddings, messages, responses
from .connection import Site
from .engine import Engine
from .errors import ApiError, RouteError
from .settings import Settings
from .wire import Reply, Request

Endpoint = Callable[[Engine, Request, Reply], Awaitable[None]]

_GENERATE: Mapping[str, Endpoint] = {
    "/v1/chat/completions": chat.handle,
    "/v1/completions": completions.handle,
    "/v1/responses": responses.handle,
    "/v1/messages": messages.handle,
    "/v1/messages/count_tokens": messages.count_tokens,
    "/v1/embeddings": embeddings.handle,
    "/tokenize": admin.tokenize,
    "/detokenize": admin.detokenize,
}
_SCALE_OUT = (
    "/v1/chat/completions/render", "/v1/completions/render", "/v1/messages/render",
    "/v1/responses/render", "/v1/chat/completions/derender", "/v1/completions/derender",
    "/inference/v1/generate", "/inference/v1/abort_requests",
)
ROUTES: Mapping[str, Mapping[str, Endpoint]] = {
    **{path: {"POST": endpoint} for path, endpoint in _GENERATE.items()},
    **{path: {"POST": admin.scale_out_disabled} for path in _SCALE_OUT},
    "/v1/models": {"GET": admin.models},
    "/health": {"GET": admin.health},
    "/ping": {"GET": admin.health, "POST": admin.health},
    "/version": {"GET": admin.version},
    "/load": {"GET": admin.load},
    "/metrics": {"GET": admin.metrics},
    "/kv_event_sources": {"GET": admin.kv_event_sources},
    "/reset_prefix_cache": {"POST": admin.reset_prefix_cache},
    "/sim/state": {"GET": admin.state},
    "/sim/cached": {"GET": admin.cached},
    "/sim/faults": {"GET": admin.faults, "POST": admin.faults},
}
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")


class Server:
    """Listens, routes, and turns what endpoints raise into replies."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine = Engine(settings)
        self.site = Site(self.handle, settings.keepalive_s)
        self.engine.site = self.site
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        if self.settings.uds is not None:
            return f"unix:{self.settings.uds}"
        scheme = "https" if self.settings.ssl_certfile else "http"
        host = self.settings.host
        host = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
        return f"{scheme}://{host}:{self.port}"

    async def start(self) -> None:
        """Raises OSError when the address cannot be bound."""
        s = self.settings
        if s.ready_delay_s > 0:
            await asyncio.sleep(s.ready_delay_s)
        await self.engine.start()
        context = None
        if s.ssl_certfile is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(s.ssl_certfile, s.ssl_keyfile)
        loop = asyncio.get_running_loop()
        if s.uds is not None:
            self._server = await loop.create_unix_server(self.site.protocol, s.uds, ssl=context)
        else:
            self._server = await loop.create_server(
                self.site.protocol, s.host, s.port, ssl=context, backlog=2048)
            self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.site.connections):
            connection.transport.abort()
        await self.engine.stop()

    async def handle(self, request: Request, reply: Reply) -> None:
        engine = self.engine
        if not request.path.startswith("/sim/"):
            engine.note(request)
            if await engine.faults.apply(request, reply):
                return
        counted = request.path.startswith("/v1/") and request.path != "/v1/models"
        engine.in_flight += counted
        try:
            if not self._authorized(request):
                reply.json(401, {"error": "Unauthorized"})
                return
            await self._endpoint(request)(engine, request, reply)
        except ApiError as exc:
            if exc.status < 500 and engine.transfer is not None:
                engine.transfer.rejected(request.body)
            reply.json(exc.status, exc.body(), exc.headers())
        finally:
            engine.in_flight -= counted

    def _endpoint(self, request: Request) -> Endpoint:
        methods = ROUTES.get(request.path)
        if methods is None and request.path.startswith("/v1/responses/"):
            methods = responses.methods(request.path)
        if methods is None:
            raise RouteError(404, "Not Found")
        endpoint = methods.get(request.method)
        if endpoint is None:
            raise RouteError(405, "Method Not Allowed", ", ".join(methods))
        return endpoint

    def _authorized(self, request: Request) -> bool:
        keys = self.settings.api_keys
        if not keys or request.method == "OPTIONS" or not request.path.startswith(_GUARDED):
            return True
        scheme, _, token = (request.get("authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and any(
            secrets.compare_digest(token.encode(), key.encode()) for key in keys)
