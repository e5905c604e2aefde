"""A client's address in the forms that limits, logs and picks need; each worked out once per peer.

Invariant: what cannot be read as an address ("unix:") stands for itself, as in nginx.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.context import Context

REMEMBERED_MAX = 4096  # peers whose forms are kept


@lru_cache(maxsize=REMEMBERED_MAX)
def split(address: str) -> tuple[str, str]:
    """(host without brackets, port) of "host:port"; ("unix:", "") of a unix socket."""
    if address.startswith("unix:"):
        return "unix:", ""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


@lru_cache(maxsize=REMEMBERED_MAX)
def _packed(peer: str) -> bytes:
    text = split(peer)[0]
    try:
        return ipaddress.ip_address(text).packed
    except ValueError:
        return text.encode("latin-1", "replace")


def packed(ctx: Context) -> bytes:
    """`$binary_remote_addr`: 4 or 16 bytes."""
    return _packed(ctx.client.peer)


def address(ctx: Context) -> str:
    return split(ctx.client.peer)[0]


def network(ctx: Context) -> bytes:
    """What `ip_hash` goes by: three bytes of an IPv4 address, all of an IPv6 one."""
    raw = packed(ctx)
    return raw[: 3 if len(raw) == 4 else None]
