"""TLS of listening addresses: one context per server block, chosen by SNI.

Invariant: who must show a certificate, and which versions are spoken, is one answer per address
(`-t` sees to it): OpenSSL takes them from the context that a handshake began with.

Raises OSError and ssl.SSLError with the file's name where a certificate cannot be read.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.conf.model import Server
    from gateway.site.fronts import Front


def context(front: Front) -> ssl.SSLContext | None:
    """The context of an address, or None where it speaks plain HTTP."""
    if not front.listen.ssl:
        return None
    by_server = {id(server): _load(server) for server in front.servers if server.ssl_certificate}
    names = {
        name.lower(): by_server[id(server)]
        for server in reversed(front.servers)
        for name in server.names
        if id(server) in by_server
    }
    default = by_server.get(id(front.default)) or next(iter(by_server.values()))

    def choose(
        tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext
    ) -> int | None:
        tls.context = _find(names, (name or "").lower(), default)
        return None

    default.sni_callback = choose
    return default


def _find(names: dict[str, ssl.SSLContext], name: str, default: ssl.SSLContext) -> ssl.SSLContext:
    """Exact, then `*.name` from the longest, as `server_name`."""
    if name in names:
        return names[name]
    labels = name.split(".")
    for at in range(1, len(labels)):
        tail = ".".join(labels[at:])
        for form in (f"*.{tail}", f".{tail}"):
            if form in names:
                return names[form]
    return default


_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY = {"off": ssl.CERT_NONE, "on": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL}


def _load(server: Server) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [_VERSIONS[name] for name in server.ssl_protocols]
    made.minimum_version, made.maximum_version = min(versions), max(versions)
    made.set_alpn_protocols(["http/1.1"])
    for certificate, key in server.ssl_certificates:
        try:
            made.load_cert_chain(certificate, key, password="")
        except (OSError, ssl.SSLError, ValueError) as error:
            raise OSError(
                f"cannot use certificate `{certificate}` with key `{key}`: {error}"
            ) from error
    if server.ssl_verify_client != "off":
        try:
            made.load_verify_locations(server.ssl_client_certificate)
        except (OSError, ssl.SSLError) as error:
            raise OSError(
                f"cannot use certificates `{server.ssl_client_certificate}`: {error}"
            ) from error
        made.verify_mode = _VERIFY[server.ssl_verify_client]
    return made
