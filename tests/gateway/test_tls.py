"""TLS of listening addresses: the certificate follows the name that the client asks for."""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway import app as wiring
from gateway.conf import load_text
from gateway.process.acceptor import Acceptor, PlainGate, Secured
from native import relay


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return cert_file, key_file


def server(name: str, files: tuple[Path, Path], default: str = "") -> str:
    return (
        f"server {{ listen 127.0.0.1:0 ssl {default}; server_name {name}; "
        f"ssl_certificate {files[0]}; ssl_certificate_key {files[1]}; "
        f"location / {{ return 200 {name.strip('*.')}; }} }}"
    )


async def ask(port: int, name: str | None) -> tuple[str, bytes]:
    """(common name of the certificate, body of the reply) for a client that asks for `name`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=name or ""
    )
    writer.write(
        b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (name or "x").encode()
    )
    reply = await reader.read()
    raw = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    subject = x509.load_der_x509_certificate(raw).subject
    return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value), reply[-1:]


async def test_certificates_follow_the_name(tmp_path: Path) -> None:
    servers = (
        server("a.example", certificate(tmp_path, "first"))
        + server("*.b.example", certificate(tmp_path, "wild"))
        + server("c.example", certificate(tmp_path, "other"), "default_server")
    )
    app = wiring.build(load_text(f"http {{ access_log off; {servers} }}", f"{tmp_path}/k.conf"))
    (listener,) = app.listeners
    sock = listener.bind()
    factory = relay.serve_protocol(app.pipeline, app.asgi, listener)
    listening = await asyncio.get_running_loop().create_server(
        factory, sock=sock, ssl=listener.ssl_context
    )
    port = sock.getsockname()[1]
    try:
        assert (await ask(port, "a.example"))[0] == "first"
        assert (await ask(port, "x.b.example"))[0] == "wild"
        assert (await ask(port, "A.EXAMPLE"))[0] == "first"
        assert (await ask(port, "c.example"))[0] == "other"
        assert (await ask(port, "unknown.example"))[0] == "other"
    finally:
        listening.close()
        await app.stop()


def test_a_certificate_that_broke_since_names_its_files(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "x")
    text = f"http {{ access_log off; {server('x', (cert, key))} }}"
    config = load_text(text, f"{tmp_path}/k.conf")
    key.write_text("no key")
    with pytest.raises(OSError, match=r"x\.pem.*x\.key"):
        wiring.build(config)


async def test_plain_http_on_a_tls_port_is_told_so(tmp_path: Path) -> None:
    """nginx's answer, in our shape, and recorded; TLS goes on beside it, and so does silence."""
    app = wiring.build(
        load_text(
            f"http {{ log_format l '$status $request'; access_log {tmp_path}/log l; "
            + server("a.example", certificate(tmp_path, "first")) + "}",
            f"{tmp_path}/k.conf",
        )
    )  # fmt: skip
    (listener,) = app.listeners
    sock = listener.bind()
    port = sock.getsockname()[1]
    factory = relay.serve_protocol(app.pipeline, app.asgi, listener)
    plain = relay.serve_protocol(PlainGate(app.pipeline), app.asgi, listener)
    assert listener.ssl_context is not None
    secured = Secured(listener.ssl_context, plain, 0.2)
    acceptor = Acceptor(sock.dup(), factory, secured, lambda: 0)
    try:
        silent, _ = await asyncio.open_connection("127.0.0.1", port)
        for request in (b"GET /x HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\nContent-Length: 9\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request + b"Host: a.example\r\n\r\n")
            reply = await reader.read()
            assert reply.startswith(b"HTTP/1.1 400 ") and b"connection: close" in reply.lower()
            error = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
            assert error["message"].startswith("The plain HTTP request was sent to HTTPS port")
            writer.close()
        assert await ask(port, "a.example") == ("first", b"e")
        assert await silent.read() == b""  # its time for a first byte is over
    finally:
        acceptor.close()
        sock.close()
        await app.stop()
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == ["400 GET /x HTTP/1.1", "400 POST /x HTTP/1.1", "200 GET / HTTP/1.1"]
