"""HTTP/1.1 as the engine speaks it: keep-alive, pipelines, disconnects, limits."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from engines.sim.process import SimEngine

Start = Callable[..., SimEngine]


def request(path: str, body: object = None, *lines: str, version: str = "1.1") -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = [f"{'GET' if body is None else 'POST'} {path} HTTP/{version}", "host: x", *lines]
    if body is not None:
        head += ["content-type: application/json", f"content-length: {len(data)}"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def talk(engine: SimEngine, data: bytes, timeout: float = 5.0) -> bytes:
    """Sends, and reads until the engine closes the connection."""
    with socket.create_connection(("127.0.0.1", engine.port), timeout) as sock:
        sock.sendall(data)
        out = b""
        while part := sock.recv(65536):
            out += part
        return out


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}


def test_keepalive_ends_after_its_time(sim: Start) -> None:
    engine = sim("m", "--keepalive", 0.2)
    began = time.monotonic()
    out = talk(engine, request("/version"))
    assert out.startswith(b"HTTP/1.1 200 OK\r\n") and b"connection: close" not in out
    assert 0.15 < time.monotonic() - began < 3


def test_connection_close_is_honoured(engine: SimEngine) -> None:
    out = talk(engine, request("/version", None, "connection: close"))
    assert b"connection: close\r\n" in out and out.endswith(b'{"version":"0.32.0"}')


def test_http_1_0_streams_without_chunks(engine: SimEngine) -> None:
    out = talk(engine, request("/v1/chat/completions", {**CHAT, "stream": True}, version="1.0"))
    assert b"transfer-encoding" not in out
    assert out.split(b"\r\n\r\n", 1)[1].startswith(b"data: ") and out.endswith(b"[DONE]\n\n")


def test_pipelined_requests_are_answered_in_order(engine: SimEngine) -> None:
    chat = {**CHAT, "stream": True}
    out = talk(engine, request("/v1/chat/completions", chat) + request("/version")
               + request("/load", None, "connection: close"))
    assert out.count(b"HTTP/1.1 200 OK") == 3
    assert out.index(b"[DONE]") < out.index(b'"version"') < out.index(b'"server_load"')


def test_a_chunked_request_body_is_read(engine: SimEngine) -> None:
    reply = httpx.post(engine.url + "/v1/chat/completions", headers={
        "content-type": "application/json"}, content=iter([json.dumps(CHAT).encode()]))
    assert reply.status_code == 200


def test_expect_is_answered_before_the_body(engine: SimEngine) -> None:
    data = request("/v1/chat/completions", CHAT, "expect: 100-continue", "connection: close")
    head, body = data.split(b"\r\n\r\n", 1)
    with socket.create_connection(("127.0.0.1", engine.port), 5) as sock:
        sock.sendall(head + b"\r\n\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert sock.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_what_is_no_http_gets_a_400(engine: SimEngine) -> None:
    out = talk(engine, b"hello there\r\n\r\n")
    assert out.startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_client_that_leaves_frees_its_blocks(sim: Start) -> None:
    engine = sim("m", "--tokens", 10_000, "--profile", "fixed:20")
    for stream in (True, False):
        before = engine.state()["aborted"]
        with socket.create_connection(("127.0.0.1", engine.port), 5) as sock:
            sock.sendall(request("/v1/chat/completions", {**CHAT, "stream": stream}))
            engine.wait_for(lambda s: s["running"] == 1 and s["blocks_used"] > 0)
        state = engine.wait_for(lambda s, n=before: s["aborted"] == n + 1)  # type: ignore[misc]
        assert state["running"] == state["blocks_used"] == 0


def test_a_half_closed_client_counts_as_gone(sim: Start) -> None:
    engine = sim("m", "--tokens", 10_000, "--profile", "fixed:20")
    with socket.create_connection(("127.0.0.1", engine.port), 5) as sock:
        sock.sendall(request("/v1/chat/completions", {**CHAT, "stream": True}))
        engine.wait_for(lambda s: s["running"] == 1)
        sock.shutdown(socket.SHUT_WR)
        engine.wait_for(lambda s: s["aborted"] == 1)


def test_a_waiting_request_is_aborted_too(sim: Start) -> None:
    engine = sim("m", "--tokens", 10_000, "--profile", "fixed:20", "--max-num-seqs", 1)
    body = request("/v1/chat/completions", {**CHAT, "stream": True})
    with socket.create_connection(("127.0.0.1", engine.port), 5) as first:
        first.sendall(body)
        engine.wait_for(lambda s: s["running"] == 1)
        with socket.create_connection(("127.0.0.1", engine.port), 5) as second:
            second.sendall(body)
            engine.wait_for(lambda s: s["waiting"] == 1)
        state = engine.wait_for(lambda s: s["waiting"] == 0)
        assert (state["aborted"], state["running"]) == (1, 1)


def test_a_unix_socket(sim: Start, tmp_path: Path) -> None:
    engine = sim("m", "--uds", tmp_path / "e.sock")
    assert engine.address == f"unix:{tmp_path / 'e.sock'}"
    assert engine.call("POST", "/v1/chat/completions", CHAT)[0] == 200


@pytest.mark.parametrize(("path", "method", "status"), [
    ("/nope", "GET", 404), ("/v1/chat/completions", "GET", 405), ("/health", "POST", 405),
    ("/v1/responses/", "GET", 404), ("/v1/responses/a/b", "GET", 404)])
def test_unknown_paths_and_methods(
    engine: SimEngine, path: str, method: str, status: int
) -> None:
    reply = httpx.request(method, engine.url + path)
    assert reply.status_code == status and list(reply.json()) == ["detail"]
    assert ("allow" in reply.headers) == (status == 405)


def test_keys_guard_the_inference_paths_only(sim: Start) -> None:
    engine = sim("m", "--api-key", "one", "two")
    assert engine.call("GET", "/health")[0] == 200 == engine.call("GET", "/metrics")[0]
    assert engine.call("GET", "/v1/models") == (401, {"error": "Unauthorized"})
    for key, status in (("one", 200), ("two", 200), ("three", 401)):
        reply = httpx.get(engine.url + "/v1/models", headers={"authorization": f"Bearer {key}"})
        assert reply.status_code == status


def test_tls(sim: Start, tmp_path: Path) -> None:
    key, cert = _certificate(tmp_path)
    engine = sim("m", "--ssl-certfile", cert, "--ssl-keyfile", key)
    assert engine.url.startswith("https://")
    context = ssl.create_default_context(cafile=str(cert))
    context.check_hostname = False
    assert httpx.get(engine.url + "/version", verify=context).status_code == 200


def _certificate(where: Path) -> tuple[Path, Path]:
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    cert = (x509.CertificateBuilder().subject_name(name).issuer_name(name)
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256()))
    key_file, cert_file = where / "key.pem", where / "cert.pem"
    key_file.write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption()))
    cert_file.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    return key_file, cert_file
