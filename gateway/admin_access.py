"""Who may use admin endpoints: whoever reaches their unix socket, or has the location's token;
never another site's page.
"""

from __future__ import annotations

import hmac

from starlette.requests import Request

from gateway import errors

CLIENT = "kvgate.client"  # the relay's connection, in a scope's extensions


def admin_refusal(request: Request, token: str) -> errors.GatewayError | None:
    """Why an admin request is not served, or None. Pure but for the request."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        return errors.Forbidden(what="admin endpoints are not for other sites' pages")
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        return errors.Forbidden(what="admin endpoints are not for other sites' pages")
    client = request.scope.get("extensions", {}).get(CLIENT)
    if client is not None and client.listener.unix_path:
        return None
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if token and scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), token.encode()):
        return None
    return errors.Unauthorized()
