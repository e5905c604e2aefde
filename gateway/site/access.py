"""Who may come, and who counts as one of us: addresses against lists of networks, pure.

Invariant: an address that cannot be read fits nothing but "all", so it is never let in by a rule
for a network and never trusted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gateway.conf.model import AccessRule

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
REMEMBERED_MAX = 4096  # addresses that are kept read


class Networks:
    """Networks as the configuration gives them: CIDR forms, "unix:" and "all"."""

    __slots__ = ("_all", "_networks", "_unix")

    def __init__(self, written: Iterable[str]) -> None:
        written = tuple(written)
        self._all = "all" in written
        self._unix = "unix:" in written
        self._networks: list[Network] = [
            ipaddress.ip_network(text) for text in written if text not in ("all", "unix:")
        ]

    def __contains__(self, address: str) -> bool:
        """`address`: of a client, without port; "unix:" for a unix socket."""
        if address == "unix:":
            return self._all or self._unix
        return self.has(plain(read(address)))

    def has(self, address: Address | None) -> bool:
        # Another family is never inside.
        return self._all or (
            address is not None and any(address in network for network in self._networks)
        )


class Access:
    """The `allow` and `deny` lines of a location: the first that fits decides."""

    __slots__ = ("_ipv4", "_rules")

    def __init__(self, rules: Sequence[AccessRule]) -> None:
        self._rules = [(rule.allow, Networks((rule.network,))) for rule in rules]
        # As in nginx, IPv4 written as IPv6 is looked up as IPv4 where a rule is about IPv4 at all.
        self._ipv4 = any(rule.network == "all" or "." in rule.network for rule in rules)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def allows(self, address: str) -> bool:
        if address == "unix:":
            return next((allow for allow, networks in self._rules if address in networks), True)
        found = plain(read(address)) if self._ipv4 else read(address)
        return next((allow for allow, networks in self._rules if networks.has(found)), True)


@lru_cache(maxsize=REMEMBERED_MAX)
def read(address: str) -> Address | None:
    try:
        return ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None


def plain(address: Address | None) -> Address | None:
    """IPv4 where it is written as IPv6 (::ffff:1.2.3.4)."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped
