"""The first phase: may this request be served at all? Sizes, methods and the worker's own limit.

Invariant: what `enter` let in is let out once, by `leave` (the record calls it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway import errors
from gateway.site.addresses import address

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.site.plan import Plan

STREAM = -1  # the relay's word: the body passes through unread
_REFUSED_METHODS = frozenset({b"TRACE", b"CONNECT"})
_FORM = b"multipart/form-data"  # the only type whose body is surely no JSON to an engine


class Gatehouse:
    """Requests inside at this moment, and how many there may be."""

    __slots__ = ("active", "limit")

    def __init__(self, limit: int) -> None:
        self.active = 0
        self.limit = limit  # worker_connections

    def enter(self, ctx: Context) -> errors.GatewayError | None:
        """Takes a place, or says why not."""
        request = ctx.request
        if request.method in _REFUSED_METHODS:
            return errors.MethodNotAllowed(
                method=request.method.decode(), path=ctx.path.decode("latin-1")
            )
        plan = ctx.plan
        if plan.access and not plan.access.allows(address(ctx)):
            return denied()
        max_body = plan.max_body
        if max_body and request.body is not None and len(request.body) > max_body:
            return too_large(max_body)
        if self.active >= self.limit:
            return errors.TooManyRequests(
                what=f"this worker serves {self.limit} requests already (`worker_connections`)"
            )
        self.active += 1
        ctx.inside = True
        return None

    def leave(self) -> None:
        self.active -= 1


def denied() -> errors.Forbidden:
    return errors.Forbidden(what="Requests from this address are not served here")


def too_large(limit: int) -> errors.BodyTooLarge:
    return errors.BodyTooLarge(what=f"The request body is larger than {limit} bytes")


def body_limit(plan: Plan, path: bytes, content_type: bytes) -> int:
    """What the relay may buffer of a body before it hands the request over, in bytes (0 = no
    limit), or STREAM where nothing in the body has to be read.
    """
    if plan.kind != "proxy":
        return plan.max_body
    unread = not reads_body(plan, path) or content_type.lower().startswith(_FORM)
    assert plan.catalog is not None
    named = plan.by_model or plan.catalog.renames  # the form's `model` must be found
    if not unread or named:
        return plan.max_body
    return STREAM


def reads_body(plan: Plan, path: bytes) -> bool:
    """Whether routing, a cache scope or the rules against strangers need the JSON of the body."""
    if not plan.trust or plan.by_model or plan.scoped:
        return True
    assert plan.catalog is not None
    if plan.catalog.aware:
        return True
    return bool(plan.catalog.names) or path.startswith(b"/v1/responses")
