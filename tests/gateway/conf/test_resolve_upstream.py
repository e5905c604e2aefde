"""What right `upstream` blocks mean."""

from __future__ import annotations

import pytest

from gateway.conf import load_text
from gateway.conf.model import Balance, HealthCheck, Template, Upstream, Var


def upstream(body: str) -> Upstream:
    text = f"http {{ upstream u {{ {body} }} server {{ listen 1; return 404; }} }}"
    return load_text(text).upstreams["u"]


def test_engine_line_with_everything() -> None:
    line = upstream(
        "server 10.0.0.1:8000 weight=2 max_fails=3 fail_timeout=1m max_conns=7 backup down "
        "role=decode events=tcp://10.0.0.1:5557; server b:1;"
    ).engines[0]
    assert (line.address, line.host, line.port, line.unix_path) == (
        "10.0.0.1:8000",
        "10.0.0.1",
        8000,
        "",
    )
    assert (line.weight, line.max_fails, line.fail_timeout_s, line.max_conns) == (2, 3, 60.0, 7)
    assert (line.backup, line.down, line.role) == (True, True, "decode")
    assert line.events == "tcp://10.0.0.1:5557"


def test_engine_line_with_nothing() -> None:
    line = upstream("server 10.0.0.1:8000;").engines[0]
    assert (line.weight, line.max_fails, line.fail_timeout_s, line.max_conns) == (1, 1, 10.0, 0)
    assert (line.backup, line.down, line.role, line.events) == (False, False, "both", "")


@pytest.mark.parametrize(
    ("text", "host", "port", "unix_path"),
    [
        ("gpu-1.example.org:8000", "gpu-1.example.org", 8000, ""),
        ("[::1]:8000", "::1", 8000, ""),
        ("[2001:DB8::0:1]:1", "2001:db8::1", 1, ""),
        ("unix:/run/vllm.sock", "", 0, "/run/vllm.sock"),
        ("localhost", "localhost", 80, ""),
    ],
)
def test_engine_addresses(text: str, host: str, port: int, unix_path: str) -> None:
    line = upstream(f"server {text};").engines[0]
    assert (line.address, line.host, line.port, line.unix_path) == (text, host, port, unix_path)


@pytest.mark.parametrize(
    ("text", "balance"),
    [
        ("", Balance()),
        ("round_robin;", Balance("round_robin")),
        ("least_conn;", Balance("least_conn")),
        ("hash $http_x;", Balance("hash", Template((Var("http_x"),)))),
        ("hash a$uri consistent;", Balance("hash", Template(("a", Var("uri"))), True)),
    ],
)
def test_balance(text: str, balance: Balance) -> None:
    assert upstream(f"server a:1; {text}").balance == balance


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("", HealthCheck()),
        ("health_check;", HealthCheck()),
        ("health_check off;", None),
        (
            "health_check uri=/ping interval=1s passes=2 timeout=500ms fails=9;",
            HealthCheck(1.0, 0.5, 9, 2, "/ping"),
        ),
    ],
)
def test_health_check(text: str, check: HealthCheck | None) -> None:
    assert upstream(f"server a:1; {text}").health_check == check


def test_models_and_aliases() -> None:
    found = upstream("server a:1; model org/m alias=x alias=y; model n;")
    assert found.models == ("org/m", "n")
    assert found.aliases == (("x", "org/m"), ("y", "org/m"))


def test_upstream_connections() -> None:
    found = upstream("server a:1; keepalive 8; keepalive_timeout 2s; keepalive_requests 9;")
    assert (found.keepalive, found.keepalive_timeout_s, found.keepalive_requests) == (8, 2.0, 9)
