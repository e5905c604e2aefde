"""Replies of the gateway's own endpoints, and what they read of a request.

Invariant: every error has the one shape that errors have, whichever endpoint answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway import errors
from gateway.admin_access import admin_refusal

if TYPE_CHECKING:
    from gateway.site.plan import Plan

PLAN = "kvgate.plan"  # of the location that a request came to, in its scope


def read(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidJson."""
    try:
        value = orjson.loads(body)
    except ValueError as error:
        raise errors.InvalidJson(what=str(error)) from None
    if not isinstance(value, dict):
        raise errors.InvalidJson(what="it must be a JSON object")
    return value


def json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, {"content-type": "application/json"})


def refusal(request: Request) -> Response | None:
    """Why an admin page is not shown, or None."""
    plan: Plan = request.scope[PLAN]
    if plan.kind != "admin":
        return error(nothing(request))
    refused = admin_refusal(request, plan.location.admin_token)
    return None if refused is None else error(refused)


def error(of: errors.GatewayError, status: int = 0) -> Response:
    headers = {name.decode(): value.decode() for name, value in of.headers()}
    return Response(of.body(), status or of.status, headers)


def nothing(request: Request) -> errors.PathNotFound:
    return errors.PathNotFound(method=request.method, path=request.url.path[:200])
