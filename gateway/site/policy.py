"""What a request asks for by its policy headers, held to its location's bounds. Pure.

Invariant: a policy header acts only where `policy_header` allows it, and `X-KVGate-Engine` only
from `trusted_from`; every other one is as if it had not been sent, and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway import errors
from gateway.conf import policies
from gateway.conf.model import Location, PolicyHeader
from gateway.conf.units import BadValue
from gateway.site.access import Networks

if TYPE_CHECKING:
    from native.relay import Request

OWN_PREFIX = b"x-kvgate-"
NO_WISHES: Mapping[str, str | float] = {}
# What X-KVGate-Policy asks for -> the method of the pick. Where the upstream is not kv_aware, `kv`
# is its own method.
METHODS = {
    "kv": "kv", "least": "least_conn", "hash": "hash", "random": "random",
    "round_robin": "round_robin",
}  # fmt: skip


class Policies:
    """The policy headers of one location."""

    __slots__ = ("_aliased", "_rows", "_trusted")

    def __init__(self, location: Location) -> None:
        aliases: dict[str, list[bytes]] = {}
        for header, name in location.policy_aliases:
            aliases.setdefault(name.lower(), []).append(header.encode())
        self._rows: tuple[tuple[PolicyHeader, str, tuple[bytes, ...]], ...] = tuple(
            (header, header.name.lower().removeprefix("x-kvgate-"),
             (header.name.lower().encode(), *aliases.get(header.name.lower(), ())))
            for header in location.policy_headers
        )  # fmt: skip
        self._aliased = bool(aliases)
        self._trusted = Networks(location.trusted_from)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def read(self, request: Request, address: str) -> tuple[Mapping[str, str | float], int]:
        """(short name -> word or number, headers that do not act). `address`: the client's, without
        port. Raises BadPolicy.
        """
        own = request.has_prefix(OWN_PREFIX)
        if not own and not self._aliased:
            return NO_WISHES, 0
        wishes: dict[str, str | float] = {}
        acting = set()
        for header, short, names in self._rows:
            if header.trusted and address not in self._trusted:
                continue
            acting.add(names[0])
            for name in names:
                raw = request.get(name)
                if raw is not None:
                    wishes[short] = _value(header, name, raw)
                    break
        if not own:
            return wishes, 0
        sent = [name for name, _ in request.headers if name.startswith(OWN_PREFIX)]
        return wishes, sum(name not in acting for name in sent)


def _value(header: PolicyHeader, name: bytes, raw: bytes) -> str | float:
    try:
        return policies.read(header, raw.decode("latin-1").strip())
    except BadValue as error:
        shown = header.name
        if name.decode() != header.name.lower():
            shown += f" (sent as {name.decode()})"
        raise errors.BadPolicy(header.name, header=shown, expected=error.expected) from None


def method(wishes: Mapping[str, str | float], own: str) -> str:
    """The method of the pick for a request, `own` the upstream's. A session is a key of `hash`, but
    where prompts decide it is only one of their terms.
    """
    asked = METHODS.get(str(wishes.get("policy", "")), "")
    if not asked:
        return "hash" if "session" in wishes and own != "kv" else own
    return own if asked == "kv" and own != "kv" else asked


def salt(wishes: Mapping[str, str | float], sent: str | None) -> str:
    """The `cache_salt` of a request in a cache scope, `sent` its body's. A digest: every engine
    takes it, and it tells nothing of either.
    """
    text = f"{wishes['cache-scope']}\0{sent or ''}".encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def left_s(wishes: Mapping[str, str | float] | None, total_s: float, elapsed_s: float) -> float:
    """What is left of the time for all legs: the location's (0 = no limit), or the less that the
    request asked for. 0 = no limit.
    """
    limits = [total_s] if total_s else []
    if wishes and "timeout" in wishes:
        limits.append(float(wishes["timeout"]))
    return max(min(limits) - elapsed_s, 0.001) if limits else 0.0


def key(wishes: Mapping[str, str | float]) -> bytes:
    """The key of `hash` that a session is; b"" = none was named."""
    return str(wishes.get("session", "")).encode()
