"""Templates become text that cannot break out of a line or a header."""

import json
from types import SimpleNamespace as Fake

import pytest

from gateway.conf import variables as table
from gateway.conf.model import Template, Var
from gateway.context import Attempt, Context
from gateway.site import variables
from gateway.site.variables import compile_header, compile_log, compile_text, getter, needs_reply


class FakeRequest:
    def __init__(self, headers: dict[bytes, bytes] | None = None, **over: object) -> None:
        self.method, self.target, self.path, self.query = (
            b"POST",
            b"/v1/x?a=1&b=%0a",
            b"/v1/x",
            b"a=1&b=%0a",
        )
        self.version, self.body, self.content_length, self.head_bytes = 11, b"{}", 2, 100
        self.t_head, self.t0 = 10.0, 10.0
        self._headers = headers or {}
        for name, value in over.items():
            setattr(self, name, value)

    def joined(self, name: bytes, default: bytes | None = None) -> bytes | None:
        return self.get(name, default)

    def get(self, name: bytes, default: bytes | None = None) -> bytes | None:
        return self._headers.get(name, default)


def leg(**over: object) -> Fake:
    fields: dict[str, object] = {
        "status": 200, "reply_headers": [(b"X-A", b"1")], "t_start": 10.1, "t_connected": 10.2,
        "t_head": 10.4, "t_end": 11.0, "t_first": 10.5, "t_last": 10.9, "sse": True, "chunks": 5,
        "completion_tokens": -1, "prompt_tokens": 7, "cached_tokens": -1, "itl_max": 0.1,
        "bytes_sent": 10, "bytes_received": 20, "times": lambda *_: (0.5,) * 8,
    }  # fmt: skip
    return Fake(**{**fields, **over})


def context(headers: dict[bytes, bytes] | None = None, **slots: object) -> Context:
    client = Fake(peer="10.0.0.9:4711", local="[::1]:80", tls=False, requests=3)
    plan = Fake(server_name="main")
    ctx = Context(client, FakeRequest(headers), plan, b"/v1/x", "f" * 32)  # type: ignore[arg-type]
    for name, value in slots.items():
        setattr(ctx, name, value)
    return ctx


def template(*parts: str | Var) -> Template:
    return Template(parts)


def test_every_variable_of_the_table_is_there_and_no_other() -> None:
    exact = {v.name for v in table.VARIABLES if not v.name.endswith("_")}
    assert exact == set(variables.TABLE)
    for variable in table.VARIABLES:
        getter(variable.name + ("x" if variable.name.endswith("_") else ""))


@pytest.mark.parametrize("state", ["fresh", "picked", "ended", "refused"])
def test_every_variable_reads_in_every_state(state: str) -> None:
    engine = Fake(address="e:1")
    ctx = context()
    if state != "fresh":
        ctx.engine, ctx.group = engine, Fake(name="up")  # type: ignore[assignment]
    if state == "ended":
        ctx.leg = leg()  # type: ignore[assignment]
        ctx.attempts = (Attempt(engine, ctx.leg, 200),)  # type: ignore[arg-type]
        ctx.status, ctx.t_end = 200, 11.0
    if state == "refused":
        from gateway.errors import PathNotFound

        ctx.error = PathNotFound(method="GET", path="/")
    for name in variables.TABLE:
        assert getter(name)(ctx) is None or isinstance(getter(name)(ctx), str), name


def test_unknown_variable() -> None:
    with pytest.raises(KeyError):
        getter("")
    with pytest.raises(KeyError):
        getter("http_")


def test_default_escape_keeps_a_line_whole() -> None:
    line = compile_log(template(Var("http_a"), " ", Var("http_b"), " 100%"), "default")
    assert line(context({b"a": b'x"\\\r\n\xff'})) == "x\\x22\\x5C\\x0D\\x0A\\xFF - 100%"


def test_json_escape_is_json() -> None:
    line = compile_log(template('{"a":"', Var("http_a"), '","b":"', Var("http_b"), '"}'), "json")
    raw = 'é"\\\n日'.encode()
    assert json.loads(line(context({b"a": raw}))) == {"a": 'é"\\\n日', "b": ""}
    assert json.loads(line(context({b"a": b"\xff"})))["a"] == "?"


def test_no_escape_still_is_one_line() -> None:
    line = compile_log(template(Var("http_a")), "none")
    assert line(context({b"a": b'"\r\nx'})) == '"  x'


def test_headers_cannot_be_split() -> None:
    value = compile_header(template("v=", Var("http_a"), Var("http_none")))
    assert value(context({b"a": b"1\r\nx-evil: 1\x00"})) == b"v=1  x-evil: 1 "


def test_several_engines_are_listed() -> None:
    ctx = context()
    first, second = Fake(address="e:1"), Fake(address="e:2")
    ctx.engine = second  # type: ignore[assignment]
    ctx.attempts = (
        Attempt(first, leg(t_connected=0.0, t_head=0.0), 502),  # type: ignore[arg-type]
        Attempt(second, leg(), 200),  # type: ignore[arg-type]
    )
    ctx.t_end = 11.0
    text = compile_text(
        template(
            *[Var(f"upstream_{n}") for n in ("addr", "status", "connect_time")], Var("attempts")
        )
    )
    assert text(ctx) == "e:1, e:2502, 200-, 0.1002"


def test_the_engine_being_asked_is_listed_after_those_that_failed() -> None:
    address = compile_header(template(Var("upstream_addr")))
    ctx = context()
    assert address(ctx) == b""
    ctx.engine = Fake(address="e:2")  # type: ignore[assignment]
    assert address(ctx) == b"e:2"
    ctx.attempts = (Attempt(Fake(address="e:1"), leg(), 502),)  # type: ignore[arg-type]
    assert address(ctx) == b"e:1, e:2"


def test_values() -> None:
    ctx = context(
        {b"x-forwarded-for": b"1.1.1.1", b"cookie": b"a=b; c=d", b"host": b"H:80"}, t_end=10.5,
    )  # fmt: skip
    for name, value in {
        "remote_addr": "10.0.0.9", "server_addr": "::1", "server_port": "80", "arg_a": "1",
        "arg_B": "%0a",
        "cookie_c": "d", "host": "h", "request": "POST /v1/x?a=1&b=%0a HTTP/1.1",
        "request_time": "0.500",
        "proxy_add_x_forwarded_for": "1.1.1.1, 10.0.0.9", "uri": "/v1/x", "request_length": "102",
        "arg_none": None, "https": "",
    }.items():  # fmt: skip
        assert getter(name)(ctx) == value, name
    ctx.leg = leg()  # type: ignore[assignment]
    assert getter("ttft")(ctx) == "0.500"
    assert getter("tpot")(ctx) == "0.100000"
    assert getter("sent_http_x_a")(ctx) == "1"
    assert getter("cached_tokens")(ctx) is None


def test_what_waits_for_the_reply() -> None:
    assert needs_reply(["upstream_http_x"])
    assert needs_reply(["upstream_status"])
    assert not needs_reply(["engine", "http_x"])
