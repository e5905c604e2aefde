"""Who may use admin endpoints: whoever reaches their unix socket, or has the location's token;
never another site's page.
"""

from __future__ import annotations

from starlette.requests import Request

from gateway import errors
from gateway.callers import FOREIGN, has_token, is_foreign

CLIENT = "kvgate.client"  # the relay's connection, in a scope's extensions


def admin_refusal(request: Request, token: str) -> errors.GatewayError | None:
    """Why an admin request is not served, or None. Pure but for the request."""
    foreign = page_refusal(request)
    if foreign is not None:
        return foreign
    client = request.scope.get("extensions", {}).get(CLIENT)
    if client is not None and client.listener.unix_path:
        return None
    return None if has_token(request.headers, token) else errors.Unauthorized()


def page_refusal(request: Request) -> errors.GatewayError | None:
    """Likewise for what holds nothing of this gateway: it needs no token."""
    return errors.Forbidden(what=FOREIGN) if is_foreign(request.headers) else None
