"""TLS towards engines, for `proxy_pass https://`: one context per set of `proxy_ssl_*` values.

Invariant: with `proxy_ssl_verify on`, no byte of a request goes to an engine whose certificate does
not have the name or is not signed by a trusted authority. The name that is checked is also sent:
Python's TLS checks no name that it does not send.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.conf.model import ProxyTls
from gateway.site.variables import compile_text

if TYPE_CHECKING:
    from gateway.context import Context


class Secure:
    """What a location's connections to engines are made with. Raises OSError where a file cannot
    be used.
    """

    __slots__ = ("_fixed", "_name", "context", "sends")

    def __init__(self, conf: ProxyTls) -> None:
        self.context = _context(conf)
        self.sends = conf.verify or conf.server_name
        self._name: Callable[[Context], str] | None = None
        self._fixed: str | None = None  # the name, where no request decides it
        if conf.name is not None:
            self._name = compile_text(conf.name)
            self._fixed = conf.name.constant

    def name(self, ctx: Context) -> str:
        """The name to check and to send; "": none."""
        if not self.sends:
            return ""
        if self._name is not None:
            return self._name(ctx).lower()
        return ctx.group.name if ctx.group is not None else ""

    def way(self, upstream: str) -> tuple[ssl.SSLContext, str]:
        """For a request of the gateway's own: a name that only a client's request would tell is
        neither sent nor checked, its certificate still is.
        """
        if not self.sends:
            return self.context, ""
        if self._name is None:
            return self.context, upstream
        if self._fixed is None:
            self.context.check_hostname = False
        return self.context, (self._fixed or "").lower()


def _context(conf: ProxyTls) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = conf.verify
    made.verify_mode = ssl.CERT_REQUIRED if conf.verify else ssl.CERT_NONE
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if conf.trusted_certificate:
            made.load_verify_locations(conf.trusted_certificate)
        if conf.certificate:
            made.load_cert_chain(conf.certificate, conf.certificate_key, password="")
    except (OSError, ssl.SSLError, ValueError) as error:
        names = f"`{conf.trusted_certificate}`, `{conf.certificate}`"
        raise OSError(f"cannot use the certificates of `proxy_ssl_*` ({names}): {error}") from error
    return made
