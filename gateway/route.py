"""The second phase: which upstream, which target, and what of the body must change. Pure.

Invariants: a body changes only at spans that the scan gave; an engine-control path never passes
unless its location says `engine_admin on`, and what counts is the path that the engine would see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway import errors
from gateway.conf.resolve_proxy import split_target
from gateway.forms import model_span
from gateway.paths import PROMPTED, is_inference, plain
from gateway.site import policy
from gateway.site.plan import FORBIDDEN
from gateway.site.sites import upstream_target
from native._core import Scan, rewrite, scan

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.fleet.catalog import Named
    from gateway.fleet.engine import Engine

SHOWN_MAX = 200  # characters of a client's text in an error message


def aim(ctx: Context) -> bytes:
    """Sets the target, and the upstream where variables give it, and returns the plain path that
    the engine will see. Raises PathNotFound, BadRequest, UnknownUpstream.
    """
    plan = ctx.plan
    ctx.target = ctx.sent
    path = ctx.path
    if plan.target is not None or plan.uri is not None:
        if plan.target is not None:
            _evaluate(ctx, plan.target(ctx))
        else:
            query = ctx.request.query
            if ctx.sent is not ctx.request.target:
                query = ctx.sent.partition(b"?")[2] or None
            ctx.target = upstream_target(plan.pattern, plan.uri, b"", path, query)
        seen = plain(ctx.target.partition(b"?")[0])
        if seen is None:
            raise errors.BadRequest(what="the request path cannot be written plainly")
        path = seen
    if not plan.path_open and not is_inference(path):
        raise not_found(ctx)
    return path


def _evaluate(ctx: Context, text: str) -> None:
    """`proxy_pass` with variables: the upstream, and the target unless it goes through as sent."""
    name, target = split_target(text)
    catalog = ctx.plan.catalogs.get(name) if name else None
    if catalog is None:
        raise errors.UnknownUpstream(upstream=name[:SHOWN_MAX])
    ctx.group = catalog.groups[0]
    if target is not None:
        ctx.target = target.encode("latin-1", "replace")


def not_found(ctx: Context) -> errors.PathNotFound:
    return errors.PathNotFound(
        method=ctx.request.method.decode("latin-1"), path=ctx.path.decode("latin-1")[:SHOWN_MAX]
    )


def looks_like_json(ctx: Context) -> bool:
    """By its content type, or where that says nothing of the kind, by its first byte: what an
    engine makes of a body is not for its sender to say.
    """
    body = ctx.request.body
    if not body or ctx.sent is not ctx.request.target:
        return False
    kind = ctx.request.get(b"content-type")
    if kind is None or b"json" in kind.lower():
        return True
    begins = body[:64].lstrip()
    return not begins or begins[:1] == b"{"


def read(ctx: Context) -> Scan | None:
    """Scans the body. Raises InvalidJson; a body that does not call itself JSON and is none
    passes unread.

    Releases the GIL for large bodies: callable from a thread.
    """
    body = ctx.request.body
    assert body is not None
    try:
        return scan(body)
    except ValueError as error:
        kind = ctx.request.get(b"content-type")
        if kind is None or b"json" in kind.lower():
            raise errors.InvalidJson(what=str(error)) from None
        return None


def settle(ctx: Context, seen: bytes) -> None:
    """Names the upstream and prepares the body. `seen`: the plain path that the engine will see.
    Raises ModelNotFound, ModelRequired.
    """
    plan = ctx.plan
    found = ctx.scan
    span = learn(ctx)
    if ctx.group is None:
        ctx.group = plan.group
    if ctx.pinned is not None and ctx.group is None:
        ctx.group = ctx.pinned.team.group
    named = _named(ctx, ctx.model) if ctx.model else None
    if named is not None:
        ctx.group = named.group
        ctx.edits = named.edits
    if ctx.group is None:
        raise errors.ModelRequired("model")
    if not plan.trust:
        for name in FORBIDDEN:
            if ctx.request.get(name) is not None:
                ctx.stripped += 1
    if found is not None:
        if "cache-scope" in ctx.policy and seen in PROMPTED:
            ctx.salt = policy.salt(ctx.policy, found.cache_salt)
        _edit(ctx, found, named)
    elif span is not None and named is not None and named.edits is not None and ctx.body:
        ctx.body = ctx.body[: span[0]] + named.model.encode() + ctx.body[span[1] :]


def learn(ctx: Context) -> tuple[int, int] | None:
    """Names the model; its span in a form, where it came in one."""
    ctx.body = b"" if ctx.turned and ctx.sent is not ctx.request.target else ctx.request.body
    if ctx.scan is not None:
        ctx.model = ctx.scan.model or ""
    elif ctx.body:
        span = model_span(ctx.body, ctx.request.get(b"content-type") or b"")
        if span is not None:
            ctx.model = ctx.body[slice(*span)].decode("utf-8", "replace")
        return span
    return None


def _named(ctx: Context, model: str) -> Named | None:
    catalog = ctx.plan.names(ctx)
    named = catalog.find(model)
    if named is None and (catalog.closed or ctx.group is None):
        raise errors.ModelNotFound("model", model=model[:SHOWN_MAX])
    return named


def asked_for(ctx: Context) -> Engine:
    """The engine that X-KVGate-Engine names. Raises BadPolicy."""
    assert ctx.group is not None
    engine = ctx.group.by_address.get(str(ctx.policy["engine"]))
    if engine is None:
        name = "X-KVGate-Engine"
        expected = f"an engine of `{ctx.group.name}`"
        raise errors.BadPolicy(name, header=name, expected=expected)
    return engine


def _edit(ctx: Context, found: Scan, named: Named | None) -> None:
    """Puts the engine's name in the place of an alias, cuts what a stranger must not set, and adds
    the salt of a cache scope: what the scope promises, the engine has to keep.
    """
    strip = found.forbidden and not ctx.plan.trust
    model = None if named is None else named.quoted
    salt = None if ctx.salt is None else b'"%b"' % ctx.salt.encode()
    if not strip and model is None and salt is None:
        return
    if strip:
        ctx.stripped += len(found.strip)
    assert ctx.body is not None
    ctx.body = rewrite(ctx.body, found, model=model, strip=strip, cache_salt=salt)
