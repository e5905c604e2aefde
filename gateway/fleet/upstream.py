"""The gateway's own requests to engines: health, models. httpx, never on the path of a client's
request.

Invariants: nothing of the environment (proxies, netrc) plays a part; every call has a deadline;
redirects are not followed; the upstream's `api_key` is sent as bearer token and is never logged.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import Group

Way = tuple[ssl.SSLContext, str]  # and the name to send and to check; "" = none

CONNECTIONS_MAX = 128
REPLY_BYTES_MAX = 8 << 20


class Unreachable(Exception):
    """The engine did not give a whole reply; the text says why."""


def tls_context() -> ssl.SSLContext:
    """For engines behind https. Like nginx's default, the certificate is not verified."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class ControlPlane:
    """One client for engines on TCP, one for each unix socket and for each upstream with TLS of its
    own.
    """

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._ways: Mapping[str, Way] = {}
        self._clients: dict[tuple[str, str], httpx.AsyncClient] = {}

    def adopt(self, ways: Mapping[str, Way]) -> None:
        """Upstream -> its TLS, of a new configuration; others have nginx's default."""
        self._ways = ways
        self._clients = {}  # what runs keeps its own; no connection is ever kept idle

    def _client(self, unix_path: str, upstream: str) -> httpx.AsyncClient:
        way = self._ways.get(upstream)
        key = unix_path, "" if way is None else upstream
        client = self._clients.get(key)
        if client is None:
            transport = httpx.AsyncHTTPTransport(
                verify=self._tls if way is None else way[0],
                uds=unix_path or None,
                trust_env=False,
                limits=httpx.Limits(max_connections=CONNECTIONS_MAX, keepalive_expiry=2.0),
            )
            client = httpx.AsyncClient(transport=transport, trust_env=False)
            self._clients[key] = client
        return client

    async def get(
        self, group: Group, engine: Engine, path: str, timeout_s: float
    ) -> tuple[int, bytes]:
        """(status, body). Raises Unreachable: no reply in `timeout_s`, or one that is too long."""
        headers = {"connection": "close"}
        return await self._ask(group, engine, ("GET", path, headers, b""), timeout_s)

    async def post(
        self,
        group: Group,
        engine: Engine,
        path: str,
        body: bytes,
        timeout_s: float,
        authorization: str = "",
    ) -> tuple[int, bytes]:
        """(status, body) of a JSON body's reply. `authorization`: where the upstream has no
        `api_key`. Raises as `get` does.
        """
        headers = {"content-type": "application/json"}
        if authorization:
            headers["authorization"] = authorization
        return await self._ask(group, engine, ("POST", path, headers, body), timeout_s)

    async def _ask(
        self,
        group: Group,
        engine: Engine,
        what: tuple[str, str, dict[str, str], bytes],
        timeout_s: float,
    ) -> tuple[int, bytes]:
        line = engine.line
        method, path, headers, content = what
        scheme = "https" if engine.pools[1] is not None and engine.pools[0] is None else "http"
        host = "localhost" if line.unix_path else line.server
        headers["user-agent"] = "kvgate"
        if group.conf.api_key:
            headers["authorization"] = f"Bearer {group.conf.api_key}"
        name = self._ways[group.name][1] if group.name in self._ways else ""
        body = b""
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._client(line.unix_path, group.name).stream(
                    method,
                    f"{scheme}://{host}{path}",
                    headers=headers,
                    content=content or None,
                    timeout=timeout_s,
                    extensions={"sni_hostname": name} if name else {},
                ) as reply,
            ):
                async for part in reply.aiter_bytes():
                    body += part
                    if len(body) > REPLY_BYTES_MAX:
                        raise Unreachable(f"its reply is larger than {REPLY_BYTES_MAX} bytes")
                return reply.status_code, body
        except TimeoutError:  # of all of it: each read has one of its own
            raise Unreachable(f"no whole reply in {timeout_s:g}s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            text = str(error)
            name = type(error).__name__
            raise Unreachable(f"{name}: {text}" if text else name) from None

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()
