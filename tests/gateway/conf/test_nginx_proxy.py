"""Targets, headers and variables: ours beside a real nginx, on the same file and requests."""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import unquote

import pytest

from gateway.conf import load_text
from gateway.conf.model import Config, Location, Proxy, Template
from gateway.conf.resolve_proxy import split_target
from gateway.paths import plain
from gateway.site.maps import MapTable, groups
from gateway.site.plan import ADDED_STATUSES
from gateway.site.sites import LocationTable, Row, upstream_target

# (location, proxy_pass). The engine answers with the request target that it got.
ROUTES = [
    ("/plain", "http://u"),
    ("/root/", "http://u/"),
    ("/cut", "http://u/"),
    ("/deep/a/", "http://u/v1/"),
    ("/noslash/", "http://u/v1"),
    ("/addslash", "http://u/v1/"),
    ("= /exact", "http://u/other"),
    ("^~ /final/", "http://u/x/"),
    ("~ ^/regex/(.*)$", "http://u"),
    ("~ ^/group/(?<rest>[a-z]*)/?(.*)", "http://u/$rest/two/$2"),
    ("~* ^/ANY/", "http://u/fixed$is_args$args"),
    ("/uri/", "http://u$uri"),
    ("/all/", "http://u$request_uri"),
    ("/mapped/", "http://$to"),
    ("/mapped-path/", "http://$to/path"),
    ("/query/", "http://u?a=$args"),
    ("/set/", "http://$chosen/$kept"),
]
TARGETS = [
    "/plain/a?b=c", "/plain", "/plain//x/../y?z", "/root/", "/root/a/b?c=d", "/root/a%20b",
    "/root/%7Ea", "/root//x//y", "/root/./q", "/root/x/../y", "/cut", "/cut/ab", "/cutter",
    "/deep/a/", "/deep/a/models?x=1&y=%20", "/deep/a/%41", "/noslash/x", "/noslash/",
    "/addslash", "/addslash/x", "/addslashed", "/exact", "/exact?q=1", "/final/x.y?z",
    "/regex/a%20b?c", "/group/ab/cd?e=f", "/group/x", "/any/x?y=1", "/any/x", "/uri/a~b?c",
    "/uri/x", "/all/a%20b?c", "/mapped/x?y", "/mapped-path/x?y", "/query/x?y=2", "/query/x",
    "/set/x", "/root/x?", "/root/a+b;c,d=e@f:g", "/root/%25", "/root/%3Fq",
]  # fmt: skip
PROXIES = "".join(
    f"location {head if ' ' not in head else head.replace(' ', ' ' + chr(34), 1) + chr(34)} "
    f"{{ proxy_pass {url}; }}\n"
    for head, url in ROUTES
)
PROXY_HTTP = f"""
upstream u {{ server unix:{{folder}}/echo; }}
map $host $to {{ default u; }}
server {{
    listen unix:{{folder}}/s;
    set $chosen u;
    set $kept "kept$is_args";
{PROXIES}
}}
"""


def ours(http: str) -> Config:
    return load_text(f"http {{ {http.replace('{folder}', '/x')} }}")


def rows(locations: tuple[Location, ...]) -> list[Row[Location]]:
    return [(x.modifier, x.pattern, x, rows(x.locations)) for x in locations]


def evaluate(template: Template, values: dict[str, str]) -> str:
    return "".join(p if isinstance(p, str) else values[p.name] for p in template.parts)


def target(config: Config, raw: bytes) -> bytes:
    """The target an engine gets, by the gateway's pure functions."""
    path, mark, query = raw.partition(b"?")
    flat = plain(path)
    assert flat is not None
    location = LocationTable(rows(config.servers[0].locations)).match(flat)
    assert location is not None and isinstance(location.handler, Proxy)
    proxy = location.handler
    if proxy.target is None:
        uri = None if proxy.uri is None else proxy.uri.encode()
        return upstream_target(location.pattern.encode(), uri, raw, flat, query if mark else None)
    values = {
        "uri": flat.decode(), "request_uri": raw.decode(), "args": query.decode(),
        "is_args": "?" if query else "", "host": "x",
    }  # fmt: skip
    if location.captures:
        from gateway.conf.patterns import compile_regex

        match = compile_regex(location.pattern, ignore_case=location.modifier == "~*").search(flat)
        assert match is not None
        values |= groups(match)
    for name, source in config.maps.items():
        value, _ = MapTable(source).find(evaluate(source.source, values))
        values[name] = evaluate(value, values)
    for assign in location.sets:
        values[assign.name] = evaluate(assign.value, values)
    name, uri_text = split_target(evaluate(proxy.target, values))
    assert name == "u"
    return raw if uri_text is None else uri_text.encode()


def meaning(raw: str) -> tuple[str, str]:
    """A target, but for which harmless characters are written as escapes: nginx leaves more of
    them plain. Both forms name the same path.
    """
    path, _, query = raw.partition("?")
    return unquote(path), query


ECHO = 'server { listen unix:{folder}/echo; location / { return 200 "$request_uri"; } }'


def test_engines_get_the_same_target(nginx: Any) -> None:
    nginx.start(PROXY_HTTP + ECHO)
    config = ours(PROXY_HTTP)
    different = []
    for raw in TARGETS:
        answer = nginx.ask(raw)
        mine = target(config, raw.encode()).decode()
        if meaning(answer.body) != meaning(mine):
            different.append((raw, answer.body, mine))
    assert different == []


def test_a_blank_never_ends_the_target() -> None:
    """nginx sends "GET /uri/a b HTTP/1.0", which no server takes."""
    assert target(ours(PROXY_HTTP), b"/uri/a%20b%23?c") == b"/uri/a%20b%23"


@pytest.mark.parametrize(
    "line",
    [
        'location ~ "^/r" { proxy_pass http://u/x; }',
        "error_page 404 = @n; location @n { proxy_pass http://u/x; }",
        "location /a { proxy_pass ftp://u; }",
        "location /a { proxy_pass u; }",
        "location /a { proxy_pass http://; }",
        'location ~ "^/r(.*)" { proxy_pass http://u/x$1; }',
        "error_page 404 = @n; location @n { proxy_pass http://u/x$uri; }",
        "location /a { proxy_pass http://u/$nothing; }",
        "location /a { proxy_pass http://u; proxy_pass http://u; }",
    ],
)
def test_the_same_urls_are_right(nginx: Any, line: str) -> None:
    http = f"upstream u {{ server 127.0.0.1:1; }} server {{ listen unix:{{folder}}/s; {line} }}"
    try:
        ours(http)
        mine = True
    except Exception:
        mine = False
    assert mine == nginx.accepts(http), nginx.complaint(http)


NAMES = ("X-A", "X-B", "X-C")
SEEN = '"$http_x_a|$http_x_b|$http_x_c|$http_host"'
HEADER_ECHO = f"server {{ listen unix:{{folder}}/echo; location / {{ return 200 {SEEN}; }} }}"


def _lines(rng: random.Random, directive: str, level: str) -> str:
    count = rng.choice([0, 0, 1, 2])
    tail = lambda: rng.choice(["", " always"]) if directive == "add_header" else ""  # noqa: E731
    return "".join(
        f'{directive} {name} "{rng.choice([level, level, "$request_method", ""])}"{tail()};'
        for name in rng.sample(NAMES, count)
    )


def _tree(rng: random.Random, directive: str, last: str, number: int) -> str:
    """http > server > location > location, each with lines of its own or none."""
    inner = f"location /t/in/ {{ {_lines(rng, directive, 'inner')} {last} }}"
    outer = f"location /t/ {{ {_lines(rng, directive, 'outer')} {inner} {last} }}"
    server = _lines(rng, directive, "server")
    return f"server {{ listen unix:{{folder}}/s; server_name t{number}; {server} {outer} }}"


def _both(config: Config, number: int) -> list[tuple[str, Location]]:
    (outer,) = config.servers[number].locations
    (inner,) = outer.locations
    return [("/t/x", outer), ("/t/in/x", inner)]


@pytest.mark.parametrize("seed", [1, 2])
def test_engines_get_the_same_headers(nginx: Any, seed: int) -> None:
    rng = random.Random(seed)
    upstream = "upstream u { server unix:{folder}/echo; }"
    around = _lines(rng, "proxy_set_header", "http")
    trees = [_tree(rng, "proxy_set_header", "proxy_pass http://u;", i) for i in range(25)]
    http = upstream + around + "".join(trees)
    nginx.start(http + HEADER_ECHO)
    config = ours(http)
    sent = {"X-A": "client-a", "X-B": "client-b", "X-C": "client-c"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    for number in range(25):
        for path, location in _both(config, number):
            values = sent | {
                name: evaluate(value, {"request_method": "GET"})
                for name, value in location.set_headers
            }
            expected = "|".join([*(values[name] for name in NAMES), "u"])
            assert nginx.ask(path, f"t{number}", lines).body == expected, (number, path)


@pytest.mark.parametrize("status", [200, 301, 404])
def test_clients_get_the_same_headers(nginx: Any, status: int) -> None:
    rng = random.Random(status)
    around = _lines(rng, "add_header", "http")
    last = f"return {status} http://x/;"
    trees = [_tree(rng, "add_header", last, i) for i in range(25)]
    http = around + "".join(trees)
    nginx.start(http)
    config = ours(http)
    for number in range(25):
        for path, location in _both(config, number):
            expected = [
                (header.name.lower(), evaluate(header.value, {"request_method": "GET"}))
                for header in location.add_headers
                if header.always or status in ADDED_STATUSES
            ]
            answer = nginx.ask(path, f"t{number}")
            assert answer.status == status
            added = [pair for pair in answer.headers if pair[0].startswith("x-")]
            assert added == [pair for pair in expected if pair[1]], (number, path)


MAP = r"""
map $arg_k $value {
    hostnames;
    default         "default";
    ""              "nothing";
    exact           "exact";
    UPPER           "upper";
    \default        "the word default";
    *.example.org   "leading";
    *.b.example.org "longer leading";
    .tree.org       "domain";
    www.*           "trailing";
    www.tree.*      "longer trailing";
    ~^r(\d+)$       "number $1";
    ~*^Any(?<n>.*)$ "any $n";
    ~x              "x $arg_k";
    ~xy             "never";
}
server { listen unix:{folder}/s; location / { return 200 "$value"; } }
"""
KEYS = [
    "", "exact", "EXACT", "upper", "UPPER", "default", "a.example.org", "example.org",
    "c.b.example.org", "b.example.org", "tree.org", "s.tree.org", "A.TREE.org", "www.com", "www.",
    "www.tree.com", "www.tree.", "exact.", "r12", "R12", "r", "anything", "ANYx", "axb", "xy",
    "AXB", "www.example.org", ".tree.org", "zzz", "tree.org.",
]  # fmt: skip


def test_the_same_line_of_a_map_holds(nginx: Any) -> None:
    nginx.start(MAP)
    config = ours(MAP)
    source = config.maps["value"]
    table = MapTable(source)
    different = []
    for key in KEYS:
        template, captured = table.find(key)
        mine = evaluate(template, captured | {"arg_k": key})
        theirs = nginx.ask(f"/?k={key}").body
        if mine != theirs:
            different.append((key, theirs, mine))
    assert different == []
