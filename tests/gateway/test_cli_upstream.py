"""`kvgate upstream`: the call it makes, how it finds the listener, what it says of refusals."""

from __future__ import annotations

import http.server
import json
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import program as cli
from gateway.cli.admin_client import Failed, find_admin
from gateway.conf import load_text

REFUSAL = {"error": {"message": 'no upstream "b"', "type": "x", "param": None, "code": "y"}}


@dataclass
class Listener:
    """An admin listener that answers `status` and `text`, and keeps what it was asked."""

    address: str = ""
    status: int = 200
    text: str = "{}"
    seen: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture(params=["unix", "tcp"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    found = Listener()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found.seen.append((self.path, self.headers.get("authorization", ""), body))
            self.send_response(found.status)
            self.send_header("content-length", str(len(found.text)))
            self.end_headers()
            self.wfile.write(found.text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with tempfile.TemporaryDirectory() as folder:
        server: socketserver.BaseServer
        if request.param == "unix":
            server = UnixServer(f"{folder}/s", Handler)
            found.address = f"unix:{folder}/s"
        else:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            found.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def configuration(folder: Path, listener: Listener) -> Path:
    (folder / "token").write_text("t0ken\n")
    path = folder / "k.conf"
    path.write_text(
        f"http {{ server {{ listen {listener.address}; admin_token file:token;"
        " location / { admin; } } }"
    )
    return path


def run(*words: str) -> int:
    return cli.main(["upstream", *words])


def test_call(listener: Listener, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = configuration(tmp_path, listener)
    words = ("add", "llama-8b", "10.0.0.9:8000", "weight=2", "backup", "-c", str(file))
    assert run(*words) == 0
    assert capfd.readouterr().out == "llama-8b 10.0.0.9:8000: add\n"
    (seen,) = listener.seen
    assert seen == (
        "/kvgate/upstreams/llama-8b/servers",
        "Bearer t0ken",
        {"action": "add", "server": "10.0.0.9:8000", "params": {"weight": "2", "backup": True}},
    )


@pytest.mark.parametrize("action", ["remove", "drain", "ready", "down"])
def test_named_listener(listener: Listener, action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "abc")
    address = listener.address
    address = address if address.startswith("unix:") else f"http://{address}"
    options = ("--admin", address, "--token", "env:TOKEN")
    assert run(action, "a/b", "unix:/run/e.sock", *options) == 0
    ((path, authorization, body),) = listener.seen
    assert (path, authorization) == ("/kvgate/upstreams/a%2Fb/servers", "Bearer abc")
    assert body == {"action": action, "server": "unix:/run/e.sock", "params": {}}


@pytest.mark.parametrize(
    ("text", "message"),
    [(json.dumps(REFUSAL), 'no upstream "b"'), ("<html>", "the gateway answered 404")],
)
def test_refusal(
    listener: Listener, tmp_path: Path, text: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    listener.status, listener.text = 404, text
    assert run("drain", "b", "a:1", "-c", str(configuration(tmp_path, listener))) == 1
    assert capfd.readouterr() == ("", f"kvgate: {message}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "required"),
        (("put", "a", "b:1"), "put"),
        (("drain", "a", "b:1", "weight=2"), '"drain" takes no parameters'),
        (("add", "a", "b:1", "wieght=2"), 'did you mean "weight=2"?'),
        (("add", "a", "b:1", "weight=0"), "expected a whole number from 1 to 65535"),
        (("add", "a", "b:1", "weight=1", "weight=2"), "duplicate"),
        (("add", "a", "http://b:1"), "without a scheme"),
        (("add", "a", "b:1;c"), '"server" must be'),
        (("drain", "a", "b:1", "--admin", "b"), "not an admin address"),
        (("drain", "a", "b:1", "--admin", "unix:/s", "--token", "env:NO_SUCH"), "is not set"),
    ],
)
def test_usage(words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    assert message in capfd.readouterr().err


def test_nobody_listens(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("drain", "a", "b:1", "--admin", f"unix:{tmp_path}/none") == 1
    assert f"cannot reach unix:{tmp_path}/none" in capfd.readouterr().err


def test_bad_file_and_file_without_admin(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.conf"
    assert run("drain", "a", "b:1", "-c", str(file)) == 1
    assert "--admin the listener" in capfd.readouterr().err
    file.write_text("http { server { listen 1; return 404; } }")
    assert run("drain", "a", "b:1", "-c", str(file)) == 1
    assert "has no admin location" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("9000", "http://127.0.0.1:9000"),
        ("[::]:9000", "http://[::1]:9000"),
        ("[fd00::1]:9000", "http://[fd00::1]:9000"),
        ("localhost:9000", "http://localhost:9000"),
    ],
)
def test_listener_of_a_file(listen: str, url: str) -> None:
    inner = "location /a { return 404; location /a/b { admin; } }"
    text = f"http {{ server {{ listen %s; admin_token x; {inner} }} }}"
    admin = find_admin(load_text(text % listen))
    assert (admin.unix_path, admin.url, admin.token) == ("", url, "x")


def test_socket_goes_before_other_listeners() -> None:
    text = (
        "http { server { listen 1; admin_token x; location / { admin; } }"
        "server { listen 2; listen unix:/s; admin_token y; location / { admin; } } }"
    )
    admin = find_admin(load_text(text))
    assert (admin.unix_path, admin.token) == ("/s", "y")
    with pytest.raises(Failed):
        find_admin(load_text("http { server { listen 1; return 404; } }"))
