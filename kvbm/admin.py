"""The daemon's HTTP endpoints: what is there, what it does, verify, drop.

Verifying and dropping go on beside the requests that begin them; others ask how far they are.

The core is asked on threads, without the interpreter's lock; whatever happens here, tiers go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeGuard

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvbm.drops import Drops
from kvbm.verifying import Verifying
from native import _core

LIST_MAX = 65_536
DROP_MAX = 65_536
BODY_MAX = 8 << 20
TIERS = (("host", 1), ("disk", 2), ("remote", 4))  # bits of a row of the core's list


class BadRequest(Exception):
    """The text says what is wrong, and what would be right."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What the endpoints are about."""

    core: _core.KvbmCore
    verifying: Verifying
    drops: Drops
    status: Callable[[], Any]
    registry: CollectorRegistry


def application(subject: Subject) -> Starlette:
    """All endpoints; who may use them is the caller's to decide."""
    admin = _Admin(subject)
    return Starlette(
        routes=[
            Route("/health", admin.health),
            Route("/status", admin.status),
            Route("/metrics", metrics_endpoint(subject.registry)),
            Route("/namespaces", admin.namespaces),
            Route("/blocks", admin.blocks),
            Route("/verify", admin.verify, methods=["POST"]),
            Route("/verify", admin.verified),
            Route("/drop", admin.drop, methods=["POST"]),
            Route("/drop", admin.dropped),
            Route("/prefetch", admin.prefetch, methods=["POST"]),
        ],
        exception_handlers={
            BadRequest: lambda _, error: JSONResponse({"error": str(error)}, 400),
            TimeoutError: lambda _, error: JSONResponse({"error": str(error)}, 504),
        },
    )


def metrics_application(registry: CollectorRegistry) -> Starlette:
    """`/metrics` alone, for everybody."""
    return Starlette(routes=[Route("/metrics", metrics_endpoint(registry))])


Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


def metrics_endpoint(registry: CollectorRegistry) -> Endpoint:
    async def metrics(_: Request) -> Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return metrics


class _Admin:
    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._core = subject.core
        self._verifying, self._drops = subject.verifying, subject.drops

    async def health(self, _: Request) -> Response:
        return JSONResponse({"running": self._core.running}, 200 if self._core.running else 503)

    async def status(self, _: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(self._subject.status))

    async def namespaces(self, _: Request) -> Response:
        rows = await asyncio.to_thread(self._core.namespaces)
        return JSONResponse([[number, print.hex()] for number, print, *_ in rows])

    async def blocks(self, request: Request) -> Response:
        """Pages: `cursor` is the last answer's `next`; a page may be shorter than `limit`."""
        query = request.query_params
        cursor, limit = _number(query.get("cursor", "0")), _number(query.get("limit", "4096"))
        rows, following = await asyncio.to_thread(
            self._core.blocks, cursor, min(max(limit, 1), LIST_MAX)
        )
        prints = {row[0]: row[1].hex() for row in await asyncio.to_thread(self._core.namespaces)}
        wanted = query.get("namespace", "").lower()
        if wanted and not any(print.startswith(wanted) for print in prints.values()):
            raise BadRequest(f"no namespace begins with `{wanted[:80]}`")
        blocks = [
            {
                "namespace": prints.get(number, ""), "key": key.hex(), "bytes": size or None,
                "hits": hits, "tiers": [name for name, bit in TIERS if tiers & bit],
            }
            for number, key, size, hits, tiers in rows
            if prints.get(number, "").startswith(wanted)
        ]  # fmt: skip
        return JSONResponse({"blocks": blocks, "next": following})

    async def verify(self, request: Request) -> Response:
        body = await _body(request)
        rate, remote = body.get("rate", 0), body.get("remote", False)
        if not _is_number(rate, 0, 1 << 50):
            raise BadRequest("`rate` is bytes a second, 0 for no limit")
        if not isinstance(remote, bool):
            raise BadRequest("`remote` is true or false")
        refused = await asyncio.to_thread(self._verifying.begin, rate, remote)
        return _begun(refused)

    async def verified(self, _: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(self._verifying.report))

    async def drop(self, request: Request) -> Response:
        """Forgets `keys` of a `namespace`, or with `all` all blocks of it (or of every one), in
        every tier. What is not exactly one of these drops nothing.
        """
        body = await _body(request)
        match body:
            case {"namespace": str(name), "keys": [*keys], **rest} if (
                not rest and 0 < len(keys) <= DROP_MAX
            ):
                print = await self._namespace(name)
                raw = [_hex(key, "a key", 32) for key in keys]
                refused = self._drops.begin(print, raw)
            case {"all": True, "namespace": str(name), **rest} if not rest:
                refused = self._drops.begin_all(await self._anywhere(name))
            case {"all": True, **rest} if not rest:
                refused = self._drops.begin_all(None)
            case _:
                raise BadRequest(
                    f'say {{"namespace": HEX, "keys": [HEX, ...]}} with 1 to {DROP_MAX} keys, or '
                    '{"all": true} with or without a namespace'
                )
        return _begun(refused)

    async def dropped(self, _: Request) -> Response:
        return JSONResponse(self._drops.report())

    async def prefetch(self, request: Request) -> Response:
        """Brings blocks of a chain nearer: `keys`, or `hashes` of the engine with their `group`."""
        body = await _body(request)
        size, group = body.get("block_bytes"), body.get("group", 0)
        match body:
            case {"namespace": str(name), "keys": [*names]} | {
                "namespace": str(name),
                "hashes": [*names],
            } if 0 < len(names) <= DROP_MAX and _is_number(size, 1, 1 << 27):
                print = await self._namespace(name)
            case _:
                raise BadRequest(
                    'say {"namespace": HEX, "block_bytes": N, "keys": [HEX, ...]}, or "hashes" in '
                    f"place of keys, 1 to {DROP_MAX} of them"
                )
        keys = [_hex(one, "a key or hash", 32) for one in names]
        if "keys" not in body:
            if not _is_number(group, 0, 1 << 32):
                raise BadRequest("`group` is the number of a group of layers")
            # The way from a hash to its key is the way back.
            keys = _core.KvbmCore.hashes(print, keys, group)
        taken = await asyncio.to_thread(self._core.hint, print, keys, size)
        return JSONResponse({"taken": taken}, 202)

    async def _namespace(self, name: str) -> bytes:
        """The fingerprint that begins like this."""
        return _only(name, {row[1] for row in await asyncio.to_thread(self._core.namespaces)})

    async def _anywhere(self, name: str) -> bytes:
        """The same of one that may lie in the store only, and be named by nobody here."""
        return _only(name, await asyncio.to_thread(self._drops.namespaces))


def _only(name: str, prints: Iterable[bytes]) -> bytes:
    found = [print for print in prints if print.hex().startswith(name.lower())]
    if len(found) != 1 or len(name) < 4:
        what = "no namespace begins" if not found else f"{len(found)} namespaces begin"
        raise BadRequest(f"{what} with `{name[:80]}`; hint: give at least 4 digits of one")
    return found[0]


def _begun(refused: str) -> Response:
    """The answer to who began something that goes on beside."""
    if refused:
        return JSONResponse({"error": refused}, 409)
    return JSONResponse({"begun": True}, 202)


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request; nothing is an empty one."""
    size = 0
    parts = []
    async for part in request.stream():
        size += len(part)
        if size > BODY_MAX:
            raise BadRequest(f"the body is larger than {BODY_MAX} bytes")
        parts.append(part)
    text = b"".join(parts)
    if not text.strip():
        return {}
    try:
        body = orjson.loads(text)
    except ValueError as error:
        raise BadRequest(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def _is_number(value: object, least: int, end: int) -> TypeGuard[int]:
    """Whether JSON said a number from `least` to below `end`; `true` is none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < end


def _number(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise BadRequest(f"`{text[:40]}` is no number")
    return int(text)


def _hex(text: object, what: str, size: int) -> bytes:
    try:
        raw = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        raw = b""
    if len(raw) != size:
        raise BadRequest(f"{what} is {2 * size} hexadecimal digits, got `{str(text)[:80]}`")
    return raw
