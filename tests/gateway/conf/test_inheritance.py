"""nginx's inheritance: single values from the innermost block, lists where a block has none."""

from __future__ import annotations

import pytest

from gateway.conf import load_text
from gateway.conf.model import Location, ServiceLevels, Template


def location(in_http: str = "", in_server: str = "", in_location: str = "") -> Location:
    config = load_text(
        f"http {{ {in_http} upstream u {{ server a:1; }}"
        f"server {{ listen 1; {in_server} location / {{ proxy_pass http://u; {in_location} }} }} }}"
    )
    return config.servers[0].locations[0]


ONE, TWO, THREE = (f"proxy_read_timeout {n}s;" for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("blocks", "seconds"),
    [
        (("", "", ""), 60.0),
        ((ONE, "", ""), 1.0),
        ((ONE, TWO, ""), 2.0),
        ((ONE, TWO, THREE), 3.0),
        ((ONE, "", THREE), 3.0),
        (("", TWO, ""), 2.0),
    ],
)
def test_innermost_single_value_holds(blocks: tuple[str, str, str], seconds: float) -> None:
    assert location(*blocks).read_timeout_s == seconds


def names(found: Location) -> list[str]:
    return [name for name, _ in found.set_headers]


def test_one_header_in_a_block_drops_all_inherited() -> None:
    outer = "proxy_set_header A 1; proxy_set_header B 2;"
    assert names(location(outer)) == ["A", "B"]
    assert names(location(outer, "proxy_set_header C 3;")) == ["C"]
    assert names(location(outer, "proxy_set_header C 3;", "proxy_set_header D 4;")) == ["D"]
    assert names(location(outer, "", "")) == ["A", "B"]


def test_a_dropped_header_may_be_managed_by_the_gateway() -> None:
    """`Connection ""` sets nothing, but it is a proxy_set_header line and drops the others."""
    assert names(location("proxy_set_header A 1;", "", 'proxy_set_header Connection "";')) == []


def test_empty_value_is_kept_as_removal() -> None:
    (header,) = location('proxy_set_header Accept-Encoding "";').set_headers
    assert header == ("Accept-Encoding", Template(()))


def test_add_header_inherits_alike() -> None:
    found = location("add_header A 1;", "add_header B $host always; add_header B 2;", "")
    assert [(h.name, h.always) for h in found.add_headers] == [("B", True), ("B", False)]


def test_hide_header_inherits_alike() -> None:
    found = location("proxy_hide_header A;", "proxy_hide_header B;")
    assert found.hide_headers == {"b"}


def test_access_logs_inherit_and_off_drops() -> None:
    def logs(*blocks: str) -> list[tuple[str, str]]:
        return [(log.path, log.format.name) for log in location(*blocks).access_logs]

    assert logs() == []
    assert logs("access_log stdout;") == [("stdout", "kvgate")]
    assert logs("access_log stdout;", "access_log a json; access_log stderr combined;") == [
        ("a", "json"),
        ("stderr", "combined"),
    ]
    assert logs("access_log stdout;", "", "access_log off;") == []


def test_log_format_is_one_text_of_its_parts() -> None:
    text = 'log_format f escape=json \'{"a":"$host",\' \'"b":1}\'; access_log stdout f;'
    (log,) = location(text).access_logs
    assert log.format.escape == "json"
    assert log.format.template.parts[0] == '{"a":"'
    assert log.format.template.parts[-2:] == ('",', '"b":1}')


def test_server_settings_come_from_http() -> None:
    config = load_text(
        "http { keepalive_timeout 5s; client_header_timeout 1s; large_client_header_buffers 2 1k;"
        "server { listen 1; return 404; }"
        "server { listen 2; keepalive_timeout 6s; keepalive_requests 0; return 404; } }"
    )
    first, second = config.servers
    assert (first.keepalive_timeout_s, second.keepalive_timeout_s) == (5.0, 6.0)
    assert (first.keepalive_requests, second.keepalive_requests) == (1000, 0)
    assert (first.client_header_timeout_s, first.header_bytes_max) == (1.0, 2048)


def test_an_slo_stands_for_all_around_it() -> None:
    """One line is a whole: what it does not name is not set, whatever the line outside said."""
    out, here = "slo ttft=2s tpot=50ms e2el=1m;", "slo ttft=500ms;"
    assert location().slo is None  # the upstream's holds
    assert location(out).slo == location(out, "", "").slo == ServiceLevels(2.0, 0.05, 60.0)
    assert location(out, "", here).slo == location("", here).slo == ServiceLevels(0.5)
    assert location(out, "slo off;").slo == location(out, here, "slo off;").slo == ServiceLevels()
