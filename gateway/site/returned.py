"""`return CODE [TEXT|URL]`: the reply, or the end of the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.site.variables import header_safe

if TYPE_CHECKING:
    from gateway.exchange import Exchange

CLOSE = 444  # nginx's: no reply at all
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


def give_back(exchange: Exchange) -> None:
    """Answers. A code from 300 on without a text is an error that `error_page` may answer."""
    ctx = exchange.ctx
    assert ctx.plan.returned is not None
    status, text = ctx.plan.returned
    body = text(ctx)
    if status == CLOSE:
        exchange.cut(CLOSE)
    elif status in _REDIRECTS and body:
        where = header_safe(body).encode("latin-1", "replace")
        exchange.answer(status, [(b"location", where)], b"")
    elif body or status < 300:
        headers = [(b"content-type", b"text/plain")]
        exchange.answer(ctx.forced or status, headers, body.encode("utf-8"))
    elif not exchange.turn(status, None):
        exchange.answer(status, [(b"content-type", b"text/plain")], b"")
