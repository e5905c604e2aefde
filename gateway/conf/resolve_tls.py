"""TLS of both sides: certificates of servers, who may come with one, and what engines must show.

Files are read and loaded once, so that a wrong one is found by -t; paths are relative to the main
file's directory, as in nginx.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from gateway.conf.errors import quoted
from gateway.conf.files import Unreadable, read_bytes
from gateway.conf.model import Listen, ProxyTls
from gateway.conf.node import Node
from gateway.conf.resolve_parts import misplaced_variables
from gateway.conf.scope import Scope
from gateway.conf.setting import Setting

PEM_BYTES_MAX = 1 << 20
PROTOCOLS = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The TLS part of `model.Server`."""

    certificates: tuple[tuple[str, str], ...] = ()
    protocols: tuple[str, ...] = PROTOCOLS
    client_certificate: str = ""
    verify_client: str = "off"


def server_tls(
    node: Node, scope: Scope, listens: tuple[Listen, ...], setting: Setting
) -> ServerTls:
    """Nothing is asked of a server without TLS."""
    tls = next((child for child in node.all("listen") if child.get("ssl")), None)
    if tls is None or not any(listen.ssl for listen in listens):
        return ServerTls()
    protocols = scope.one("ssl_protocols")
    verify = scope.value("ssl_verify_client")
    return ServerTls(
        certificates=_certificates(tls, scope, setting),
        protocols=tuple(dict.fromkeys(protocols.get("version"))) if protocols else PROTOCOLS,
        client_certificate=_client_certificate(verify, scope, setting),
        verify_client=verify,
    )


def _certificates(tls: Node, scope: Scope, setting: Setting) -> tuple[tuple[str, str], ...]:
    """Pairs of paths, in file order; several for keys of several kinds."""
    report = setting.report
    missing = False
    for name in ("ssl_certificate", "ssl_certificate_key"):
        if not scope.has(name):
            report.error(tls.token("ssl"), f'"listen ... ssl" needs "{name}"')
            missing = True
    certificates, keys = scope.all("ssl_certificate"), scope.all("ssl_certificate_key")
    if missing or not certificates or not keys:
        return ()
    if len(certificates) != len(keys):
        longer = certificates if len(certificates) > len(keys) else keys
        extra = longer[min(len(certificates), len(keys))]
        other = "key" if longer is certificates else "certificate"
        report.error(extra.name, f"{quoted(extra.words[0].text)} has no {other}")
        return ()
    pairs = []
    for certificate, key in zip(certificates, keys, strict=True):
        paths = readable(certificate, setting), readable(key, setting)
        if all(paths):
            _load(*paths, certificate, setting)
            pairs.append(paths)
    return tuple(pairs)


def readable(node: Node | None, setting: Setting) -> str:
    """The path of a PEM file that can be read; "" where it cannot, which is reported."""
    if node is None:
        return ""
    token = node.token("file")
    path = os.path.join(setting.directory, token.text)
    try:
        read_bytes(path, PEM_BYTES_MAX)
    except Unreadable as error:
        setting.report.error(token, f"cannot read {quoted(path)}: {error}")
        return ""
    return path


def _load(certificate: str, key: str, at: Node, setting: Setting) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty passphrase: without one OpenSSL would ask at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        mismatch = getattr(error, "reason", None) == "KEY_VALUES_MISMATCH"
        message = f"cannot use {quoted(certificate)} with {quoted(key)}"
        why = "the key belongs to another certificate" if mismatch else "both must be PEM"
        hint = "" if mismatch else "no passphrase"
        setting.report.error(at.token("file"), f"{message}: {why}", hint)


def _authorities(node: Node | None, setting: Setting) -> str:
    path = readable(node, setting)
    if not path or node is None:
        return ""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, OSError, ValueError):
        message = f"cannot use {quoted(path)}: it must hold certificates in PEM"
        setting.report.error(node.token("file"), message)
    return path


def _client_certificate(verify: str, scope: Scope, setting: Setting) -> str:
    node = scope.one("ssl_client_certificate")
    if verify != "off" and node is None and not scope.has("ssl_client_certificate"):
        at = scope.one("ssl_verify_client")
        assert at is not None
        message = '"ssl_verify_client" needs "ssl_client_certificate"'
        setting.report.error(at.name, message, "name the file of the authorities you accept")
    return _authorities(node, setting) if verify != "off" else ""


def proxy_tls(scope: Scope, setting: Setting) -> ProxyTls:
    """For a location that proxies to https://."""
    verify = scope.value("proxy_ssl_verify")
    trusted = scope.one("proxy_ssl_trusted_certificate")
    if verify and trusted is None and not scope.has("proxy_ssl_trusted_certificate"):
        at = scope.one("proxy_ssl_verify")
        assert at is not None
        message = '"proxy_ssl_verify" needs "proxy_ssl_trusted_certificate"'
        setting.report.error(at.name, message, "such as /etc/ssl/certs/ca-certificates.crt")
    name = scope.one("proxy_ssl_name")
    if name is not None:
        misplaced_variables(name.get("name"), name.token("name"), "pick", setting)
    certificate, key = _client_pair(scope, setting)
    return ProxyTls(
        verify=verify,
        trusted_certificate=_authorities(trusted, setting),
        certificate=certificate,
        certificate_key=key,
        name=name.get("name") if name else None,
        server_name=scope.value("proxy_ssl_server_name"),
    )


def _client_pair(scope: Scope, setting: Setting) -> tuple[str, str]:
    certificate = scope.one("proxy_ssl_certificate")
    key = scope.one("proxy_ssl_certificate_key")
    if certificate is None or key is None:
        alone = certificate or key
        names = ("proxy_ssl_certificate", "proxy_ssl_certificate_key")
        if alone is not None and not all(map(scope.has, names)):
            other = names[0] if alone is key else names[1]
            setting.report.error(alone.name, f"{quoted(alone.spec.name)} needs {quoted(other)}")
        return "", ""
    paths = readable(certificate, setting), readable(key, setting)
    if not all(paths):
        return "", ""
    _load(*paths, certificate, setting)
    return paths
