"""TLS with who is who: clients that show a certificate, engines that must."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

import pytest
from harness.certificate import Certificate

from gateway import app as wiring
from gateway.conf import load_text
from gateway.site.peer import written
from native import relay


async def served(app: wiring.App) -> tuple[asyncio.Server, int]:
    (listener,) = app.listeners
    sock = listener.bind()
    factory = relay.serve_protocol(app.pipeline, app.asgi, listener)
    loop = asyncio.get_running_loop()
    made = await loop.create_server(factory, sock=sock, ssl=listener.ssl_context)
    return made, sock.getsockname()[1]


async def ask(port: int, context: ssl.SSLContext | None, path: str = "/") -> bytes:
    host = "localhost" if context else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=host
    )
    writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("how", ["on", "optional"])
async def test_clients_show_their_certificate(tmp_path: Path, how: str) -> None:
    made = Certificate.make(tmp_path)
    text = (
        "http { access_log off; server { listen 127.0.0.1:0 ssl;"
        f" ssl_certificate {made.file}; ssl_certificate_key {made.key};"
        f" ssl_client_certificate {made.file}; ssl_verify_client {how};"
        " location / { return 200 '$ssl_client_verify <$ssl_client_s_dn>'; } } }"
    )
    app = wiring.build(load_text(text, f"{tmp_path}/k.conf"))
    listening, port = await served(app)
    try:
        known = made.client()
        known.load_cert_chain(made.file, made.key)
        assert (await ask(port, known)).endswith(b"SUCCESS <CN=localhost>")
        if how == "on":
            with pytest.raises((ssl.SSLError, ConnectionError)):
                assert not await ask(port, made.client())
                raise ConnectionError("closed without a word")
        else:
            assert (await ask(port, made.client())).endswith(b"NONE <>")
    finally:
        listening.close()
        await app.stop()


async def test_engines_are_checked(tmp_path: Path) -> None:
    made = Certificate.make(tmp_path)
    names: list[str | None] = []
    context = made.server()
    context.sni_callback = lambda _tls, name, _context: names.append(name)

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    upstream = await asyncio.start_server(engine, "127.0.0.1", 0, ssl=context)
    address = f"127.0.0.1:{upstream.sockets[0].getsockname()[1]}"
    checked = f"proxy_ssl_verify on; proxy_ssl_trusted_certificate {made.file};"
    text = (
        f"http {{ access_log off; upstream u {{ server {address}; health_check off; }}"
        " server { listen 127.0.0.1:0;"
        f" location /v1/good {{ proxy_pass https://u; {checked} proxy_ssl_name localhost; }}"
        f" location /v1/bad {{ proxy_pass https://u; {checked} }}"
        " location /v1/sent { proxy_pass https://u; proxy_ssl_server_name on;"
        " proxy_ssl_name n.$arg_n; }"
        " location /v1/plain { proxy_pass https://u; } } }"
    )
    app = wiring.build(load_text(text, f"{tmp_path}/k.conf"))
    listening, port = await served(app)
    try:
        for path, status in (("good", 200), ("bad", 502), ("sent?n=b", 200), ("plain", 200)):
            reply = await ask(port, None, f"/v1/{path}")
            assert reply.startswith(b"HTTP/1.1 %d " % status), (path, reply)
        assert names == ["localhost", "u", "n.b", None]
    finally:
        listening.close()
        upstream.close()
        await app.stop()


async def test_the_gateways_own_requests_check_engines_too(tmp_path: Path) -> None:
    """Health and models go by the TLS of the locations; an engine that may be anybody's is ill."""
    made = Certificate.make(tmp_path)
    names: list[str | None] = []
    context = made.server()
    context.load_verify_locations(made.file)
    context.verify_mode = ssl.CERT_REQUIRED  # as vLLM's --ssl-cert-reqs
    context.sni_callback = lambda _tls, name, _context: names.append(name)

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"data\":[]}")

    upstream = await asyncio.start_server(engine, "127.0.0.1", 0, ssl=context)
    port = upstream.sockets[0].getsockname()[1]
    shows = f"proxy_ssl_certificate {made.file}; proxy_ssl_certificate_key {made.key};"
    checked = f"{shows} proxy_ssl_verify on; proxy_ssl_trusted_certificate {made.file};"
    cases = {
        "localhost": checked, "stranger": checked, "mute": "", "shows": shows,
        "fixed": checked + "proxy_ssl_name LOCALHOST;", "asked": checked + "proxy_ssl_name $host;",
    }  # fmt: skip
    text = "".join(
        f"upstream {name} {{ server 127.0.0.1:{port}; health_check interval=100ms; }}"
        f"server {{ listen unix:{tmp_path}/{name}; location / {{ {more} proxy_pass https://{name}; "
        "} location /loose { proxy_pass https://" + name + "; } }"
        for name, more in cases.items()
    )
    app = wiring.build(load_text(f"http {{ access_log off; {text} }}", f"{tmp_path}/k.conf"))
    await app.start()
    try:
        async with asyncio.timeout(20):
            while not app.table.settled:
                await asyncio.sleep(0.02)
        engines = {name: group.engines[0] for name, group in app.table.groups.items()}
        well = {name for name, one in engines.items() if one.healthy}
        assert well == {"localhost", "shows", "fixed", "asked"}
        assert "certificate verify failed" in engines["stranger"].why
        assert set(names) == {"localhost", "stranger", None}
    finally:
        upstream.close()
        await app.stop()


JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@pytest.mark.parametrize(
    ("reply", "ending", "whole"),
    [
        (JSON_HEAD + b"{}", "notify", True), (JSON_HEAD + b"{", "cut", False),
        (SSE_HEAD + b"data: {}\n\n", "notify", True), (SSE_HEAD + b"data: {}\n\n", "cut", False),
        (SSE_HEAD + b"data: {}\n\ndata: [DONE]\n\n", "cut", True),
    ],
)  # fmt: skip
async def test_a_reply_that_ends_with_its_connection(
    tmp_path: Path, reply: bytes, ending: str, whole: bool
) -> None:
    """One that is cut off without TLS's farewell is not taken for complete."""
    context = Certificate.make(tmp_path).server()

    def engine(listening: socket.socket) -> None:
        plain, _ = listening.accept()
        with context.wrap_socket(plain, server_side=True) as peer:
            while b"\r\n\r\n" not in peer.recv(65536):
                pass
            peer.sendall(reply)
            if ending == "notify":
                with contextlib.suppress(OSError):
                    peer.unwrap()
            else:
                peer.shutdown(socket.SHUT_RDWR)  # TCP's end alone

    with socket.create_server(("127.0.0.1", 0)) as listening:
        text = (
            f"http {{ access_log off; upstream u {{ server {listening.getsockname()[0]}:"
            f"{listening.getsockname()[1]}; health_check off; model m; }}"
            " server { listen 127.0.0.1:0; location / { proxy_pass https://u; } } }"
        )
        app = wiring.build(load_text(text, f"{tmp_path}/k.conf"))
        made, port = await served(app)
        try:
            serving = asyncio.get_running_loop().run_in_executor(None, engine, listening)
            seen = await ask(port, None, "/v1/x")
            await serving
            assert seen.startswith(b"HTTP/1.1 200 ")
            assert seen.endswith(b"0\r\n\r\n") == (whole or b"event-stream" in reply)
            assert (b"upstream_lost" in seen) == (not whole and b"event-stream" in reply)
        finally:
            made.close()
            await app.stop()


def test_a_subject_is_written_as_nginx_does() -> None:
    parts = (
        (("countryName", "DE"),),
        (("organizationName", 'A, "B"'),),
        (("commonName", "#x "),),
    )
    assert written(parts) == 'CN=\\#x\\ ,O=A\\, \\"B\\",C=DE'
