"""Who may use the admin endpoints: whoever reaches the unix socket, or has the token; never another
site's page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.callers import FOREIGN, has_token, is_foreign

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


def refusal(request: Request, is_local: bool, token: str) -> tuple[int, str] | None:
    """Status and reason why a request is not served, or None. `is_local`: it came over the unix
    socket. Pure but for the request.
    """
    if is_foreign(request.headers):
        return 403, FOREIGN
    if is_local or has_token(request.headers, token):
        return None
    return 401, "the admin token is missing or wrong; hint: Authorization: Bearer TOKEN"


class Guard:
    """Lets only those through to `app` who may use it. `token` is read at every request."""

    def __init__(self, app: App, is_local: bool, token: Callable[[], str]) -> None:
        self.app, self.is_local, self.token = app, is_local, token

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            refused = refusal(Request(scope), self.is_local, self.token())
            if refused is not None:
                status, why = refused
                await JSONResponse({"error": why}, status)(scope, receive, send)
                return
        await self.app(scope, receive, send)
