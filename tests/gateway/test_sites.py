"""nginx's precedence of servers and locations, and the plain form of paths."""

import pytest

from gateway.paths import is_inference, plain
from gateway.site.sites import LocationTable, Site, host_name, upstream_target

TABLE = LocationTable(
    [
        ("", "/", "root"),
        ("", "/v1/", "v1"),
        ("^~", "/static/", "static"),
        ("~", r"\.json$", "json"),
        ("~*", r"\.PNG$", "png"),
        ("=", "/v1/models", "models"),
        ("@", "later", "named"),
    ]
)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (b"/v1/models", "models"),
        (b"/v1/modelsx", "v1"),
        (b"/v1/x.json", "json"),
        (b"/static/x.json", "static"),
        (b"/a.png", "png"),
        (b"/a.json", "json"),
        (b"/a.JSON", "root"),
        (b"/later", "root"),
    ],
)
def test_location_precedence(path: bytes, value: str) -> None:
    assert TABLE.match(path) == value


NESTED = LocationTable(
    [
        ("", "/a/", "a", [("", "/a/b", "inner"), ("~", "x$", "inner regex"), ("=", "/a/", "=")]),
        ("^~", "/c/", "c", [("", "/c/d", "inner prefix")]),
        ("~", "z$", "regex", [("~", "bz$", "regex inside"), ("", "/never", "never")]),
    ]
)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (b"/a/b", "inner"),
        (b"/a/", "="),
        (b"/a/c", "a"),
        (b"/a/bx", "inner regex"),
        (b"/a/bz", "regex inside"),  # a prefix inside does not keep regexes around from matching
        (b"/a/cz", "regex"),
        (b"/c/dz", "inner prefix"),
        (b"/never", None),
    ],
)
def test_locations_inside_locations(path: bytes, value: str | None) -> None:
    assert NESTED.match(path) == value


def test_no_location() -> None:
    assert LocationTable([("", "/v1/", 1)]).match(b"/v2/") is None


@pytest.mark.parametrize(
    ("raw", "flat"),
    [
        (b"/v1/chat", b"/v1/chat"),
        (b"//v1///chat", b"/v1/chat"),
        (b"/v1/./chat/../models", b"/v1/models"),
        (b"/%73leep", b"/sleep"),
        (b"/v1/%2e%2e/sleep", b"/sleep"),
        (b"/v1/x%2F..%2Fload_lora_adapter", b"/v1/load_lora_adapter"),
        (b"/sleep#x", b"/sleep"),
        (b"/v1/load_lora_adapter#/x", b"/v1/load_lora_adapter"),
        (b"/%2573leep", b"/%73leep"),
        (b"http://h/v1/models", b"/v1/models"),
        (b"http://h", b"/"),
        (b"/v1/", b"/v1/"),
        (b"/v1/..", b"/"),
        (b"/", b"/"),
        (b"/a/..b/.c", b"/a/..b/.c"),
        (b"/..", None),
        (b"/v1/../../x", None),
        (b"/a%00b", None),
        (b"/a%0ab", None),
        (b"/a%zz", None),
        (b"/a%4", None),
        (b"*", None),
        (b"v1", None),
        ("/é".encode(), "/é".encode()),
    ],
)
def test_plain_path(raw: bytes, flat: bytes | None) -> None:
    assert plain(raw) == flat


@pytest.mark.parametrize(
    "path",
    [
        b"/sleep", b"/wake_up", b"/metrics", b"/docs", b"/v1/load_lora_adapter", b"/collective_rpc",
        b"/v1/unload_lora_adapter/", b"/inference/v1/generate", b"/load", b"/kv_event_sources",
        b"/",
        b"/reset_prefix_cache", b"/server_info", b"/update_weights", b"/fault_tolerance/apply",
        b"/v1",
    ],
)  # fmt: skip
def test_control_paths_are_closed(path: bytes) -> None:
    assert not is_inference(path)


@pytest.mark.parametrize(
    "path", [b"/v1/chat/completions", b"/v1/not/yet/known", b"/tokenize", b"/health", b"/rerank"]
)
def test_inference_paths_are_open(path: bytes) -> None:
    assert is_inference(path)


def test_server_names() -> None:
    def row(names: list[str], value: str, default: bool = False):  # type: ignore[no-untyped-def]
        return (names, default, [("", "/", value)])

    site = Site(
        [
            row(["first.example"], "first"),
            row(["a.example", ".tree.example"], "exact"),
            row(["*.a.example"], "lead"),
            row(["*.b.a.example"], "longer lead"),
            row(["www.*"], "trail"),
            row([r"~^r\d+\.x$"], "regex"),
            row([""], "fallback", default=True),
        ]
    )
    for host, value in {
        b"first.example": "first",
        b"A.Example.:8080": "exact",
        b"x.a.example": "lead",
        b"x.b.a.example": "longer lead",
        b"tree.example": "exact",
        b"y.tree.example": "exact",
        b"www.other": "trail",
        b"r12.x": "regex",
        b"unknown": "fallback",
        b"": "fallback",
    }.items():
        assert site.find(host, b"/")[0] == value, host


def test_first_server_is_the_default() -> None:
    site = Site([(["a"], False, [("", "/", 1)]), (["b"], False, [("", "/", 2)])])
    assert site.find(b"c", b"/") == (1, b"/")


def test_remembered_results_are_bounded_and_right() -> None:
    site = Site([([], False, [("", "/v1/", 1)])])
    for i in range(10_000):
        assert site.find(b"h", b"/v1/%d" % i) == (1, b"/v1/%d" % i)
    assert len(site._seen) <= 4096
    assert site.find(b"h", b"/v2") == (None, b"/v2")
    assert site.find(b"h", b"/v1/../..") == (None, None)


def test_host_name() -> None:
    assert host_name(b"[::1]:80") == b"[::1]"
    assert host_name(b"Host:1") == b"host"


def test_proxy_pass_uri_replaces_the_prefix() -> None:
    assert upstream_target(b"/api/", b"/v1/", b"/api/x%20y?q", b"/api/x y", b"q") == b"/v1/x%20y?q"
    assert upstream_target(b"/api/", None, b"/api//x?q", b"/api/x", b"q") == b"/api//x?q"
    assert upstream_target(b"/api", b"/", b"/api", b"/api", None) == b"/"
