"""What right configurations mean: listens, locations, handlers, secrets, files."""

from __future__ import annotations

import os
import ssl
import subprocess
from pathlib import Path

import pytest

from gateway.conf import ConfigErrors, load, load_text
from gateway.conf.model import (
    Config,
    Listen,
    Location,
    Proxy,
    Return,
    Template,
    Var,
)


def http(body: str, **options: object) -> Config:
    return load_text(f"http {{ {body} }}", environment={"KEY": "s3cret"}, **options)  # type: ignore[arg-type]


def location(head: str, body: str = "return 404;", around: str = "") -> Location:
    config = http(
        "upstream u { server a:1; model m; }"
        f"server {{ listen unix:/s; {around} location {head} {{ {body} }} }}"
    )
    return config.servers[0].locations[0]


def listen(text: str) -> Listen:
    return http(f"server {{ listen {text}; return 404; }}").servers[0].listens[0]


@pytest.mark.parametrize(
    ("text", "host", "port", "unix_path"),
    [
        ("8080", "0.0.0.0", 8080, ""),
        ("*:8080", "0.0.0.0", 8080, ""),
        ("127.0.0.1:0", "127.0.0.1", 0, ""),
        ("127.0.0.1", "127.0.0.1", 80, ""),
        ("[::]:8080", "::", 8080, ""),
        ("localhost:1", "localhost", 1, ""),
        ("unix:/run/g.sock", "", 0, "/run/g.sock"),
    ],
)
def test_listen_addresses(text: str, host: str, port: int, unix_path: str) -> None:
    found = listen(text)
    assert (found.host, found.port, found.unix_path) == (host, port, unix_path)
    assert (found.ssl, found.default_server, found.backlog) == (False, False, 2048)


def test_listen_parameters() -> None:
    found = listen("8080 default_server backlog=5")
    assert (found.default_server, found.backlog) == (True, 5)


def test_port_0_may_be_listened_on_many_times() -> None:
    server = "server { listen 127.0.0.1:0; return 404; }"
    assert len(http(server * 3).servers) == 3


def test_server_names() -> None:
    config = http("server { listen 1; server_name A.b *.c .d e.*; server_name ~^X; return 404; }")
    assert config.servers[0].names == ("a.b", "*.c", ".d", "e.*", "~^X")


@pytest.mark.parametrize(
    ("head", "modifier", "pattern"),
    [
        ("/a", "", "/a"),
        ("= /a", "=", "/a"),
        ("=/a", "=", "/a"),
        ("^~ /a", "^~", "/a"),
        ("^~/a", "^~", "/a"),
        ("~ ^/a", "~", "^/a"),
        ("~^/a", "~", "^/a"),
        ("~* \\.x$", "~*", "\\.x$"),
        ('~ "^/v[0-9]{1,2}(?<rest>.*)"', "~", "^/v[0-9]{1,2}(?<rest>.*)"),
        ("@n", "@", "n"),
        ('"/a b"', "", "/a b"),
    ],
)
def test_location_forms(head: str, modifier: str, pattern: str) -> None:
    found = location(head)
    assert (found.modifier, found.pattern) == (modifier, pattern)


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://u", Proxy("http", "u", None)),
        ("http://u/", Proxy("http", "u", "/")),
        ("https://u/v1/?x=1", Proxy("https", "u", "/v1/?x=1")),
        ("http://$upstream_by_model", Proxy("http", "", None)),
        ("https://${upstream_by_model}", Proxy("https", "", None)),
    ],
)
def test_proxy_pass(url: str, proxy: Proxy) -> None:
    assert location("/", f"proxy_pass {url};").handler == proxy


@pytest.mark.parametrize(
    ("text", "status", "parts"),
    [
        ("404", 404, ()),
        ("200 ok", 200, ("ok",)),
        ('200 "a\\n$host"', 200, ("a\n", Var("host"))),
        ("301 https://$host$request_uri", 301, ("https://", Var("host"), Var("request_uri"))),
        ("https://x/", 302, ("https://x/",)),
        ("/elsewhere", 302, ("/elsewhere",)),
        ("$scheme://x", 302, (Var("scheme"), "://x")),
    ],
)
def test_return(text: str, status: int, parts: tuple[str | Var, ...]) -> None:
    assert location("/", f"return {text};").handler == Return(status, Template(parts))


def test_return_in_server_is_its_one_location() -> None:
    (found,) = http("server { listen 1; return 301 https://$host/; }").servers[0].locations
    assert (found.modifier, found.pattern) == ("", "/")
    assert isinstance(found.handler, Return) and found.handler.status == 301


@pytest.mark.parametrize(
    ("body", "handler"), [("admin;", "admin"), ("metrics;", "metrics"), ("", "none")]
)
def test_other_handlers(body: str, handler: str) -> None:
    assert location("/", body).handler == handler


def test_location_settings() -> None:
    found = location(
        "/",
        "proxy_pass http://u; proxy_connect_timeout 1s; proxy_send_timeout 2s;"
        "proxy_first_byte_timeout 3s; proxy_read_timeout 4s; proxy_total_timeout 5s;"
        "client_max_body_size 0; proxy_next_upstream http_503 non_idempotent;"
        "proxy_next_upstream_tries 2; proxy_next_upstream_timeout 6s; engine_admin on;"
        "trust_client on; express off; expose_receipt on; admin_token env:KEY;"
        "proxy_hide_header X-A; proxy_hide_header X-B; proxy_pass_header x-b;",
    )
    times = (found.connect_timeout_s, found.send_timeout_s, found.first_byte_timeout_s)
    assert (*times, found.read_timeout_s, found.total_timeout_s) == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert found.client_max_body_size == 0
    assert found.next_upstream == {"http_503", "non_idempotent"}
    assert (found.next_upstream_tries, found.next_upstream_timeout_s) == (2, 6.0)
    assert (found.engine_admin, found.trust_client, found.express) == (True, True, False)
    assert (found.expose_receipt, found.admin_token) == (True, "s3cret")
    assert (found.hide_headers, found.pass_headers) == ({"x-a"}, {"x-b"})


def test_connection_header_of_nginx_files_has_no_effect() -> None:
    found = location(
        "/",
        'proxy_pass http://u; proxy_set_header Connection ""; proxy_set_header Host $host;'
        "proxy_set_header X-Request-Id $request_id;",
    )
    assert found.set_headers == (("Host", Template((Var("host"),))),)


def test_main_settings(tmp_path: Path) -> None:
    config = load_text(
        "worker_processes auto; worker_shutdown_timeout 5m; shutdown_delay 1s; pid run/x.pid;"
        "error_log logs/e.log warn; events { worker_connections 100; }"
        "http { client_body_buffers_total 1g; server { listen 1; return 404; } }",
        prefix=str(tmp_path),
    )
    assert config.worker_processes == min(len(os.sched_getaffinity(0)), 64)
    assert config.worker_connections == 100
    assert (config.shutdown_timeout_s, config.shutdown_delay_s) == (300.0, 1.0)
    assert config.body_buffer_total == 1 << 30
    assert (config.error_log, config.error_level) == (f"{tmp_path}/logs/e.log", "warn")
    assert (config.pid, config.prefix) == (f"{tmp_path}/run/x.pid", str(tmp_path))


def test_secrets_come_from_files_and_environment(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-file\n")
    config = http(
        "upstream a { server a:1; api_key file:key; } upstream b { server a:1; api_key env:KEY; }"
        "upstream c { server a:1; api_key inline; } server { listen 1; return 404; }",
        prefix=str(tmp_path),
    )
    assert [config.upstreams[name].api_key for name in "abc"] == ["from-file", "s3cret", "inline"]
    (warning,) = config.warnings
    assert "api_key" in warning and "inline" not in warning


def test_admin_on_tcp_with_token_and_on_a_socket_without() -> None:
    http("server { listen 1; admin_token env:KEY; location / { admin; } }")
    http("server { listen unix:/s; location / { admin; } }")
    with pytest.raises(ConfigErrors, match='needs "admin_token"'):
        http("server { listen unix:/s; listen 127.0.0.1:1; location / { admin; } }")


def certificate(folder: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", folder / "k.pem", "-out", folder / "c.pem", "-subj", "/CN=x"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip


def test_certificates_lie_beside_the_main_file(tmp_path: Path) -> None:
    certificate(tmp_path)
    file = tmp_path / "kvgate.conf"
    file.write_text(
        "http { ssl_certificate c.pem; ssl_certificate_key k.pem;"
        "server { listen 1 ssl; return 404; } server { listen 2; return 404; } }"
    )
    first, second = load(str(file), prefix="/elsewhere").servers
    assert first.ssl_certificate == str(tmp_path / "c.pem")
    assert first.ssl_certificate_key == str(tmp_path / "k.pem")
    assert (second.ssl_certificate, second.listens[0].ssl) == ("", False)
    ssl.create_default_context().load_cert_chain(first.ssl_certificate, first.ssl_certificate_key)


def test_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    certificate(tmp_path)
    certificate(other)
    text = (
        "http { ssl_certificate c.pem; ssl_certificate_key other/k.pem;"
        "server { listen 1 ssl; return 404; } }"
    )
    with pytest.raises(ConfigErrors, match="the key belongs to another certificate"):
        load_text(text, name=str(tmp_path / "f.conf"))


def test_includes_are_relative_to_the_main_file_and_sorted(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "ups[1]").mkdir()
    (tmp_path / "sub" / "s.inc").write_text("include ups*/*.inc;")
    for name in ("b", "a", "c"):
        (tmp_path / "ups[1]" / f"{name}.inc").write_text(f"upstream {name} {{ server {name}:1; }}")
    (tmp_path / "k.conf").write_text(
        "http { include sub/s.inc; include none*.inc; server { listen 1; return 404; } }"
    )
    config = load(str(tmp_path / "k.conf"))
    assert list(config.upstreams) == ["a", "b", "c"]
    place = config.upstreams["a"].place
    assert place is not None and place.file.endswith("ups[1]/a.inc") and place.line == 1


def test_same_file_may_be_included_twice(tmp_path: Path) -> None:
    (tmp_path / "t.inc").write_text("proxy_read_timeout 7s;")
    (tmp_path / "k.conf").write_text(
        "http { upstream u { server a:1; } server { listen 1;"
        "location /a { include t.inc; proxy_pass http://u; }"
        "location /b { include t.inc; proxy_pass http://u; } } }"
    )
    locations = load(str(tmp_path / "k.conf")).servers[0].locations
    assert [found.read_timeout_s for found in locations] == [7.0, 7.0]
