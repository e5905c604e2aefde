"""Times, sizes, addresses, suggestions, templates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conf import templates, units
from gateway.conf.model import Template, Var
from gateway.conf.patterns import compile_regex
from gateway.conf.suggest import nearest
from gateway.conf.units import BadValue


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0), ("10", 10.0), ("10s", 10.0), ("500ms", 0.5), ("1ms", 0.001), ("1m", 60.0),
        ("1h", 3600.0), ("1d", 86400.0), ("1w", 604800.0), ("1M", 2592000.0), ("1m30s", 90.0),
        ("1h 30m", 5400.0), ("1m30", 90.0), ("1s500ms", 1.5),
    ],
)  # fmt: skip
def test_times(text: str, seconds: float) -> None:
    assert units.seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "s", "-1", "+1", "1.5s", "1x", "30s1m", "1m1m", "10 s x", "1e3", "٣s", "2y"]
)
def test_bad_times(text: str) -> None:
    with pytest.raises(BadValue):
        units.seconds(text)


@pytest.mark.parametrize(
    ("text", "octets"),
    [("0", 0), ("512", 512), ("1k", 1024), ("1K", 1024), ("64m", 64 << 20), ("2G", 2 << 30)],
)
def test_sizes(text: str, octets: int) -> None:
    assert units.octets(text) == octets


@pytest.mark.parametrize(
    "text", ["", "k", "-1", "1.5m", "1mb", "1t", "9" * 30, "2000000g", "1 k", "٣"]
)
def test_bad_sizes(text: str) -> None:
    with pytest.raises(BadValue):
        units.octets(text)


@given(st.text(max_size=20) | st.text(alphabet="0123456789smhdkMG :[].-", max_size=20))
def test_any_text_is_a_value_or_a_bad_value(text: str) -> None:
    for read in (units.seconds, units.octets, units.integer, units.address, units.header_name):
        try:
            read(text)  # type: ignore[operator]
        except BadValue as error:
            assert error.expected


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("proxy_pas", "proxy_pass"), ("PROXY_PASS", "proxy_pass"), ("proxy-pass", "proxy_pass"),
        ("lisen", "listen"), ("xyz", None), ("l" * 100, None), ("", None),
    ],
)  # fmt: skip
def test_nearest_name(word: str, near: str | None) -> None:
    assert nearest(word, ("proxy_pass", "listen", "server")) == near


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("plain", ("plain",)),
        ("$host", (Var("host"),)),
        ("a${host}b$uri", ("a", Var("host"), "b", Var("uri"))),
        ("$http_x_y$arg_z.$sent_http_a", (Var("http_x_y"), Var("arg_z"), ".", Var("sent_http_a"))),
    ],
)
def test_templates(text: str, parts: tuple[str | Var, ...]) -> None:
    assert templates.parse(text) == Template(parts)


@pytest.mark.parametrize(
    "text", ["$", "a$", "$ x", "$$host", "${}", "$nope", "$http_", "$1", "${x"]
)
def test_bad_templates(text: str) -> None:
    with pytest.raises(BadValue):
        templates.parse(text)


def test_constant_of_templates() -> None:
    assert Template(()).constant == ""
    assert Template(("x",)).constant == "x"
    assert Template((Var("host"),)).constant is None


def test_regex_takes_pcre_group_names_but_not_lookbehind_for_one() -> None:
    found = compile_regex(r"(?<=/)(?<name>\d+)").search(b"/12")
    assert found is not None and found["name"] == b"12"
    assert compile_regex("^/A", ignore_case=True).search(b"/a")
    assert compile_regex("^/é$").search("/é".encode())


@pytest.mark.parametrize(
    "pattern", ["(", "[", "a{2,1}", "(?P<x>a)(?P<x>b)", "a" * 2000, "(?<1>x)", "(?u)x"]
)
def test_bad_regex(pattern: str) -> None:
    with pytest.raises(BadValue):
        compile_regex(pattern)
