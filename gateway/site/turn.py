"""`error_page`: another location, or a URL, answers instead of an error of the gateway's own.

Invariants: a request turns once, so an error page that fails is answered plainly; one whose body
has not been read whole does not turn. Replies of engines pass unchanged (nginx with
`proxy_intercept_errors off`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway import errors
from gateway.paths import plain
from gateway.site.variables import header_safe

if TYPE_CHECKING:
    from gateway.ending import Ending
    from gateway.site.plan import Page, Plan

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


def turn(exchange: Ending, status: int, error: errors.GatewayError | None) -> Plan | None:
    """Makes the request one of the location that answers instead, and returns that; or answers
    (`exchange.over`), or does nothing.
    """
    ctx = exchange.ctx
    page: Page | None = ctx.plan.error_pages.get(status)
    if page is None or ctx.turned or ctx.request.body is None:
        return None
    if page.url is not None:
        ctx.turned = True
        ctx.first_error = error
        where = header_safe(page.url(ctx)).encode("latin-1", "replace")
        code = page.status if page.status in _REDIRECTS else 302
        exchange.answer(code or 302, [(b"location", where)], b"")
        return None
    former = ctx.plan
    found = _to_uri(exchange, page) if page.uri is not None else former.named.get(page.named)
    if found is None or found.kind in ("admin", "metrics", "none"):
        return None
    ctx.turned = True
    ctx.first_error = error
    ctx.forced = status if page.status is None else page.status
    ctx.plan = found
    ctx.group = ctx.pinned = ctx.scan = ctx.edits = ctx.kv = ctx.salt = ctx.two = None
    found.made.follow(ctx, former.made, named=page.uri is None)
    return found


def _to_uri(exchange: Ending, page: Page) -> Plan | None:
    """GET (HEAD stays HEAD) of the path, without the request's body."""
    ctx = exchange.ctx
    assert page.uri is not None
    target = header_safe(page.uri(ctx)).replace(" ", "%20").encode("latin-1", "replace")
    path = plain(target.partition(b"?")[0])
    found = None if path is None or not ctx.plan.locate else ctx.plan.locate(path)
    if found is not None and path is not None:
        ctx.path = path
        ctx.sent = target
        ctx.method = b"HEAD" if ctx.request.method == b"HEAD" else b"GET"
    return found
