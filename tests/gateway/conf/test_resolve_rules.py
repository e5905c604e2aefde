"""What maps, sets, error pages, access, limits and policy headers mean once resolved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.conf import ConfigErrors, load_text
from gateway.conf.engine_line import engine_line
from gateway.conf.model import (
    AccessRule,
    Assign,
    Config,
    LimitConn,
    LimitReq,
    Location,
    MapEntry,
    Proxy,
    Return,
    Template,
    Var,
)
from gateway.conf.resolve_proxy import split_target


def http(body: str, **options: Any) -> Config:
    return load_text(f"http {{ {body} }}", environment={}, **options)


def location(in_http: str = "", in_server: str = "", in_location: str = "") -> Location:
    config = http(
        f"{in_http} upstream u {{ server a:1; }} server {{ listen 1; {in_server}"
        f" location / {{ proxy_pass http://u; {in_location} }} }}"
    )
    return config.servers[0].locations[0]


def text(*parts: str | Var) -> Template:
    return Template(parts)


def test_map() -> None:
    config = http(
        'map "$host:$model" $to { hostnames; volatile; default d; A.b 1; *.x $host; .y 2; z.* 3;'
        ' ~^Q(?<n>.) $n; ~*r "4"; "" 5; \\default 6; }'
        "map $to $next { default 1; } server { listen 1; return 404; }"
    )
    found = config.maps["to"]
    assert found.source == text(Var("host"), ":", Var("model"))
    assert (found.default, found.hostnames, found.volatile) == (text("d"), True, True)
    assert found.entries == (
        MapEntry("exact", "a.b", text("1")),
        MapEntry("leading", ".x", text(Var("host"))),
        MapEntry("domain", ".y", text("2")),
        MapEntry("trailing", "z.", text("3")),
        MapEntry("regex", "^Q(?<n>.)", text(Var("n"))),
        MapEntry("regex_any_case", "r", text("4")),
        MapEntry("exact", "", text("5")),
        MapEntry("exact", "default", text("6")),
    )
    assert (found.when, config.maps["next"].when) == ("route", "route")


def test_map_without_hostnames_takes_wildcards_literally() -> None:
    config = http("map $host $a { *.x 1; } server { listen 1; return 404; }")
    assert config.maps["a"].entries == (MapEntry("exact", "*.x", text("1")),)
    assert config.maps["a"].default == text()


def test_sets_of_the_server_and_of_the_location_itself() -> None:
    config = http(
        "server { listen 1; set $a 1; location /x { set $b $a; return 200; set $c 3;"
        " location /x/y { set $d 4; return 200 $b$c; } } set $e 5; }"
    )
    outer = config.servers[0].locations[0]
    server = (Assign("a", text("1")), Assign("e", text("5")))
    assert outer.sets == (*server, Assign("b", text(Var("a"))))
    assert outer.locations[0].sets == (*server, Assign("d", text("4")))


def test_set_behind_return_of_a_server_never_runs() -> None:
    config = http("server { listen 1; set $a 1; return 200 $a$b; set $b 2; }")
    assert config.servers[0].locations[0].sets == (Assign("a", text("1")),)


def test_captures() -> None:
    config = http(
        "server { listen 1; server_name ~^(?<tenant>.+)\\.x$ plain;"
        " location ~ ^/(a)(?<rest>.*)$ { return 200 $1$rest$tenant; } location /b { return 404; } }"
    )
    server = config.servers[0]
    assert server.name_captures == ("1", "tenant")
    assert server.locations[0].captures == ("1", "2", "rest")
    assert server.locations[1].captures == ()


def test_nested_locations_inherit() -> None:
    config = http(
        "upstream u { server a:1; } server { listen 1; location /a/ { proxy_read_timeout 7s;"
        " add_header A 1; proxy_pass http://u; location /a/b { add_header B 2; return 404; } } }"
    )
    outer = config.servers[0].locations[0]
    (inner,) = outer.locations
    assert (inner.modifier, inner.pattern, inner.read_timeout_s) == ("", "/a/b", 7.0)
    assert [h.name for h in outer.add_headers] == ["A"]
    assert [h.name for h in inner.add_headers] == ["B"]


def test_return_444() -> None:
    found = http("server { listen 1; return 444; }").servers[0].locations[0]
    assert found.handler == Return(444, text())


@pytest.mark.parametrize(
    ("url", "upstream", "target"),
    [
        ("http://$to", "", (Var("to"),)),
        ("http://${to}/v1", "", (Var("to"), "/v1")),
        ("http://u/v1$uri$is_args$args", "u",
         ("u/v1", Var("uri"), Var("is_args"), Var("args"))),
        ("http://u?$args", "u", ("u?", Var("args"))),
        ("http://u$request_uri", "", ("u", Var("request_uri"))),
    ],
)  # fmt: skip
def test_proxy_pass_with_variables(url: str, upstream: str, target: tuple[str | Var, ...]) -> None:
    found = location(
        "map $host $to { default u; }", "", f"location ~ ^/x {{ proxy_pass {url}; }}"
    ).locations[0]
    assert found.handler == Proxy("http", upstream, None, Template(target))


@pytest.mark.parametrize(
    ("evaluated", "parts"),
    [
        ("u", ("u", None)),
        ("u/", ("u", "/")),
        ("u/a?b", ("u", "/a?b")),
        ("u?b", ("u", "/?b")),
        ("", ("", None)),
        ("u/a b\r\nX: y", ("u", "/a%20b%0D%0AX:%20y")),
        ("u/\xe9#", ("u", "/\xe9%23")),
    ],
)
def test_evaluated_target(evaluated: str, parts: tuple[str, str | None]) -> None:
    assert split_target(evaluated) == parts


def test_error_pages() -> None:
    found = location(
        "error_page 500 /lost;",
        "error_page 502 503 = @n; error_page 404 =200 /x$uri; error_page 429 =302 https://h/;"
        "error_page 403 https://h/$uri; location @n { return 404; }",
    ).error_pages
    assert [(sorted(p.codes), p.status) for p in found] == [
        ([502, 503], 0), ([404], 200), ([429], 302), ([403], None),
    ]  # fmt: skip
    assert (found[0].named, found[0].uri, found[0].url) == ("n", None, None)
    assert (found[1].named, found[1].uri, found[1].url) == ("", text("/x", Var("uri")), None)
    assert found[3].url == text("https://h/", Var("uri"))


def test_access_rules_are_one_list_in_file_order() -> None:
    def rules(*blocks: str) -> list[tuple[bool, str]]:
        return [(rule.allow, rule.network) for rule in location(*blocks).access]

    assert rules() == []
    assert rules("deny 10.0.0.1; allow 10.0.0.0/8; deny all;") == [
        (False, "10.0.0.1/32"), (True, "10.0.0.0/8"), (False, "all"),
    ]  # fmt: skip
    assert rules("deny all;", "allow fd00::/8; allow [::1]; allow unix:;") == [
        (True, "fd00::/8"), (True, "::1/128"), (True, "unix:"),
    ]  # fmt: skip
    assert location("allow all;").access == (AccessRule(True, "all"),)


ZONES = (
    "limit_conn_zone $remote_addr zone=c:1m; limit_conn_zone $host zone=d:32k;"
    "limit_req_zone $remote_addr zone=r:10m rate=30r/m; limit_req_zone $host zone=s:1m rate=5r/s;"
)


def test_limits() -> None:
    config = http(f"{ZONES} server {{ listen 1; return 404; }}")
    zones = config.conn_zones | config.req_zones
    assert {name: (zone.entries, zone.rate) for name, zone in zones.items()} == {
        "c": (16384, 0.0), "d": (512, 0.0), "r": (81920, 0.5), "s": (8192, 5.0),
    }  # fmt: skip
    found = location(
        ZONES + "limit_conn c 1; limit_req zone=r;",
        "limit_conn c 5; limit_conn d 6; limit_conn_status 503; limit_conn_log_level warn;",
        "limit_req zone=s burst=7; limit_req zone=r burst=9 nodelay; limit_req_status 503;",
    ).limits
    assert found.conns == (LimitConn("c", 5), LimitConn("d", 6))
    assert (found.conn_status, found.conn_log_level) == (503, "warn")
    assert found.reqs == (LimitReq("s", 7, 0), LimitReq("r", 9, None))
    assert (found.req_status, found.req_log_level) == (503, "error")
    assert location(ZONES, "limit_req zone=r burst=5 delay=2;").limits.reqs[0].delay == 2
    assert (location().limits.conn_status, location().limits.req_status) == (429, 429)


def test_access_log_parameters() -> None:
    (log,) = location("access_log stdout json if=$arg_log buffer=64k flush=5s;").access_logs
    assert (log.condition, log.buffer, log.flush_s) == (text(Var("arg_log")), 65536, 5.0)


@pytest.mark.parametrize(
    ("line", "method", "two"),
    [("random", "random", False), ("random two", "random", True),
     ("random two least_conn", "random", True), ("ip_hash", "ip_hash", False)],
)  # fmt: skip
def test_balance(line: str, method: str, two: bool) -> None:
    config = http(f"upstream u {{ {line}; server a:1; }} server {{ listen 1; return 404; }}")
    found = config.upstreams["u"].balance
    assert (found.method, found.two) == (method, two)


def test_process_settings(tmp_path: Path) -> None:
    config = load_text(
        "worker_processes 3; worker_rlimit_nofile 4096; daemon off; env A=b=c; env PATH; user root;"
        "error_log logs/a.log warn;"
        "http { error_log logs/b.log crit; server { listen 1; return 404; } }",
        prefix=str(tmp_path),
    )
    assert (config.worker_processes, config.rlimit_nofile) == (3, 4096)
    assert (config.env, config.user) == ((("A", "b=c"),), "root")
    assert config.group
    assert (config.error_log, config.error_level) == (f"{tmp_path}/logs/b.log", "crit")


def test_engine_from_outside_a_file() -> None:
    line = engine_line("10.0.0.9:8000", {"weight": "2", "backup": True, "fail_timeout": "30s"})
    assert (line.host, line.port, line.weight) == ("10.0.0.9", 8000, 2)
    assert (line.backup, line.fail_timeout_s, line.address) == (True, 30.0, "10.0.0.9:8000")


@pytest.mark.parametrize(
    ("address", "params", "message"),
    [
        ("", {}, '"server" must be'),
        ("a:1; server b:1", {}, '"server" must be'),
        ("a:1", {"weight": "0"}, "weight=0"),
        ("a:1", {"wieght": "2"}, "did you mean"),
        ("a:1", {"backup": "yes"}, "backup=yes"),
        ("a:1", {"weight": True}, "weight"),
        ("a:1", {f"x{i}": "1" for i in range(100)}, "invalid parameter"),
    ],
)
def test_bad_engine_from_outside_a_file(address: str, params: Any, message: str) -> None:
    with pytest.raises(ConfigErrors, match=message):
        engine_line(address, params)
