"""Directives of TLS towards clients."""

from __future__ import annotations

from gateway.conf.spec import Arg, Directive

_PLACES = ("http", "server")

DIRECTIVES = (
    Directive(
        "ssl_certificate",
        ("http", "server"),
        (Arg("file", "path"),),
        repeat=True,
        doc="Certificate chain in PEM, for `listen ... ssl`.",
        note="Relative to the directory of the main configuration file. It is loaded by -t as "
        "well. The name a client asks for (SNI) chooses the server, and so the certificate. "
        "Several, each with its key, are for keys of several kinds.",
        example="ssl_certificate certs/api.pem;",
        see=("ssl_certificate_key", "listen"),
    ),
    Directive(
        "ssl_certificate_key",
        ("http", "server"),
        (Arg("file", "path"),),
        repeat=True,
        doc="Private key of the certificate, in PEM, without a passphrase.",
        example="ssl_certificate_key certs/api.key;",
        see=("ssl_certificate",),
    ),
    Directive(
        "ssl_protocols",
        _PLACES,
        (Arg("version", "choice", choices=("TLSv1.2", "TLSv1.3"), many=True),),
        default="TLSv1.2 TLSv1.3",
        doc="Versions of TLS that clients may speak.",
        note="Older ones are broken and not offered.",
        example="ssl_protocols TLSv1.3;",
        see=("ssl_certificate",),
    ),
    Directive(
        "ssl_client_certificate",
        _PLACES,
        (Arg("file", "path"),),
        doc="Certificates of the authorities whose clients may come, in PEM.",
        example="ssl_client_certificate certs/clients-ca.pem;",
        see=("ssl_verify_client",),
    ),
    Directive(
        "ssl_verify_client",
        _PLACES,
        (Arg("how", "choice", choices=("off", "on", "optional")),),
        default="off",
        doc="Whether a client must show a certificate; `optional`: it may.",
        note="A certificate that is not signed by an accepted authority ends the handshake, and so "
        "does none with `on`, where nginx answers 400. All servers of an address have the same "
        "answer, authorities and `ssl_protocols`: they are settled before a name is known. "
        "$ssl_client_s_dn and $ssl_client_verify tell who came.",
        example="ssl_verify_client on;",
        see=("ssl_client_certificate",),
    ),
)
