"""TLS towards clients and engines."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gateway.conf import load_text
from gateway.conf.model import ProxyTls, Template, Var


def certificate(folder: Path, name: str, kind: str) -> None:
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    options = ["-newkey", "rsa:2048"] if kind == "rsa" else options
    subprocess.run(
        ["openssl", "req", "-x509", *options, "-nodes", "-keyout", folder / f"{name}.key",
         "-out", folder / f"{name}.pem", "-subj", f"/CN={name}"],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip


def test_tls_of_both_sides(tmp_path: Path) -> None:
    certificate(tmp_path, "ec", "ec")
    certificate(tmp_path, "rsa", "rsa")
    config = load_text(
        "http { upstream u { server a:1; } ssl_protocols TLSv1.3; server { listen 1 ssl reuseport;"
        "ssl_certificate ec.pem; ssl_certificate_key ec.key;"
        "ssl_certificate rsa.pem; ssl_certificate_key rsa.key;"
        "ssl_client_certificate ec.pem; ssl_verify_client optional;"
        "proxy_ssl_verify on; proxy_ssl_trusted_certificate rsa.pem; proxy_ssl_name n.$host;"
        "proxy_ssl_server_name on; proxy_ssl_certificate ec.pem; proxy_ssl_certificate_key ec.key;"
        "location / { proxy_pass https://u; } location /plain { proxy_pass http://u; } } }",
        name=str(tmp_path / "k.conf"),
    )
    server = config.servers[0]
    pairs = tuple((str(tmp_path / f"{n}.pem"), str(tmp_path / f"{n}.key")) for n in ("ec", "rsa"))
    assert server.ssl_certificates == pairs
    assert (server.ssl_certificate, server.ssl_certificate_key) == pairs[0]
    assert server.ssl_protocols == ("TLSv1.3",)
    assert server.ssl_client_certificate == pairs[0][0]
    assert server.ssl_verify_client == "optional"
    assert server.listens[0].reuseport
    assert server.locations[0].proxy_tls == ProxyTls(
        True, pairs[1][0], *pairs[0], Template(("n.", Var("host"))), True
    )
    assert server.locations[1].proxy_tls == ProxyTls()
