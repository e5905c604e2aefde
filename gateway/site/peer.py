"""Who a client is by its TLS certificate: the values of `$ssl_client_*`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.context import Context

# Short forms of RFC 4514 and OpenSSL; other attributes keep their long names.
_SHORT = {
    "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU",
    "countryName": "C", "stateOrProvinceName": "ST", "localityName": "L",
    "streetAddress": "street", "domainComponent": "DC", "userId": "UID",
}  # fmt: skip
_SPECIAL = ',+"\\<>;'


def subject(ctx: Context) -> str | None:
    """`$ssl_client_s_dn`, the last part first, as in nginx (RFC 2253)."""
    tls = getattr(ctx.client, "tls_object", None)
    shown = None if tls is None else tls.getpeercert()
    return written(shown.get("subject", ())) if shown else None


def verified(ctx: Context) -> str | None:
    """`$ssl_client_verify`: SUCCESS or NONE. A certificate that fails ends the handshake."""
    tls = getattr(ctx.client, "tls_object", None)
    if tls is None:
        return None
    return "SUCCESS" if tls.getpeercert() else "NONE"


def written(parts: Any) -> str:
    """A subject as `ssl` gives it, as one line. Pure."""
    lines = [
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in pairs)
        for pairs in parts
    ]
    return ",".join(reversed(lines))


def _escaped(value: str) -> str:
    text = "".join("\\" + c if c in _SPECIAL else c for c in value)
    if text[:1] in ("#", " "):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(text) > 1 else text
