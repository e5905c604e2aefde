"""Maps as requests read them: the quick way says what the rules say, at every moment."""

from __future__ import annotations

from types import SimpleNamespace as Fake

import pytest

from gateway.conf import load_text
from gateway.conf.model import Template, Var
from gateway.context import Context
from gateway.site.made import KNOWN_MAX, Made, compile_maps
from gateway.site.variables import compile_text, header_lines
from native.relay import Lookup

CONF = """http {{ {maps} upstream u {{ server a:1; }}
server {{ listen 1; location / {{ proxy_pass http://u; }} }} }}"""


class Request(Fake):
    def joined(self, name: bytes, default: bytes | None = None) -> bytes | None:
        return self.get(name, default)

    def get(self, name: bytes, default: bytes | None = None) -> bytes | None:
        return self.headers.get(name, default)  # type: ignore[no-any-return]


def maps_of(text: str) -> dict[str, Lookup]:
    return compile_maps(load_text(CONF.format(maps=text)).maps)


def context(maps: dict[str, Lookup], **headers: str) -> Context:
    config = load_text(CONF.format(maps=""))
    server = config.servers[0]
    plan = Fake(made=Made(server.locations[0], server, maps), server_name="")
    raw = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    request = Request(method=b"POST", headers=raw, target=b"/", body=b"", content_length=0)
    return Context(Fake(peer="10.0.0.9:1"), request, plan, b"/", "f" * 32)  # type: ignore[arg-type]


def test_what_was_found_before_is_found_again() -> None:
    """A map of a map of a header, exact, by pattern and by default, twice each."""
    maps = maps_of(
        "map $http_x_tier $tier { default basic; gold premium; ~^team- shared; }"
        "map $tier $class { default low; premium high; shared $http_x_class; }"
    )
    for _ in range(2):
        seen = [
            maps["class"](context(maps, **headers))
            for headers in ({}, {"x_tier": "GOLD"}, {"x_tier": "team-a", "x_class": "mid"})
        ]
        assert seen == ["low", "high", "mid"]
    assert maps["tier"].known == {"": "basic", "GOLD": "premium", "team-a": "shared"}
    assert maps["class"].known == {"basic": "low", "premium": "high"}  # not what a header decides


def test_a_value_read_before_its_moment_is_read_again() -> None:
    maps = maps_of("map $status $kind { default other; 000 none; ~^5 bad; 200 good; }")
    ctx = context(maps)
    assert maps["kind"](ctx) == "none"
    ctx.status, ctx.t_end = 200, 1.0
    assert maps["kind"](ctx) == "good"
    late = context(maps)
    late.status, late.t_end = 503, 1.0
    assert maps["kind"](late) == "bad"


def test_a_value_stays_through_the_request_unless_it_is_volatile() -> None:
    maps = maps_of(
        "map $uri $kept { default x; / root; } map $uri $fresh { volatile; default x; / root; }"
    )
    ctx = context(maps)
    assert (maps["kept"](ctx), maps["fresh"](ctx)) == ("root", "root")
    ctx.path = b"/turned"
    assert (maps["kept"](ctx), maps["fresh"](ctx)) == ("root", "x")


@pytest.mark.parametrize(
    ("source", "text"),
    [("$remote_addr", "10.0.0.9"), ("$request_method", "POST"), ("$request_method-$scheme", "")],
)
def test_what_a_map_looks_up(source: str, text: str) -> None:
    text = text or "POST-http"
    maps = maps_of(f'map {source} $m {{ default no; "{text}" yes; }}')
    ctx = context(maps)
    ctx.client.tls = False
    assert (maps["m"](ctx), maps["m"](ctx), list(maps["m"].known)) == ("yes", "yes", [text])


def test_clients_cannot_fill_the_memory() -> None:
    maps = maps_of("map $http_x $m { default d; }")
    lines = header_lines([("X-M", Template((Var("m"),)))], maps)
    for at in range(KNOWN_MAX + 10):
        assert lines.render(context(maps, x=f"{at}")) == b"X-M: d\r\n"
    maps["m"](context(maps, x="long" * 100))
    assert len(maps["m"].known) <= KNOWN_MAX and "long" * 100 not in maps["m"].known


def test_no_value_can_end_its_line() -> None:
    """A map's value and a plain one; an empty one leaves its line out."""
    evil = "a\r\nX-Evil: 1\x00\x7f\t\u4e2d\xe9"
    maps = maps_of("map $http_x $m { default $http_x; }")
    rows = [
        ("X-Const", Template(("c",))), ("X-Map", Template((Var("m"),))),
        ("X-Text", Template(("t", Var("http_x")))), ("X-None", Template((Var("http_none"),))),
    ]  # fmt: skip
    ctx = context(maps)
    ctx.made = {"m": evil}
    ctx.request.headers[b"x"] = evil.encode("latin-1", "replace")
    safe = b"a  X-Evil: 1  \t?\xe9"
    wanted = b"X-Const: c\r\nX-Map: %b\r\nX-Text: t%b\r\n" % (safe, safe)
    for _ in range(2):
        assert header_lines(rows, maps).render(ctx) == wanted


def test_a_text_of_one_map_is_the_map() -> None:
    maps = maps_of("map $http_x $m { default d; }")
    assert compile_text(Template((Var("m"),)), maps) is maps["m"]
