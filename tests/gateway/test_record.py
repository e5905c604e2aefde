"""Termination codes: who ended it, and in which phase."""

from types import SimpleNamespace as Fake
from typing import Any

import pytest

from gateway import errors
from gateway.fleet.responses import ResponseMap
from gateway.record import Recorder, termination
from gateway.stats import OUTCOMES


def context(leg: object, status: int, error: object = None, body: bytes | None = b"{}") -> Fake:
    more = {"first_error": None, "held": (), "kv": None}
    return Fake(leg=leg, status=status, error=error, request=Fake(body=body), **more)


def leg(error: str | None, phase: str) -> Fake:
    return Fake(error=error, phase=phase)


CASES = [
    (context(leg(None, "done"), 200), "--"),
    (context(leg(None, "done"), 503), "--"),
    (context(None, 200), "--"),
    (context(None, 404, errors.PathNotFound(method="GET", path="/")), "GR"),
    (context(None, 503, errors.NoEngine(upstream="u")), "GQ"),
    (context(None, 499), "CQ"),
    (context(None, 499, body=None), "CR"),
    (context(leg("client_gone", "connect"), 499), "CC"),
    (context(leg("client_gone", "wait"), 499), "CH"),
    (context(leg("client_gone", "body"), 200), "CD"),
    (context(leg("reset", "body"), 200), "SD"),
    (context(leg("read_timeout", "body"), 200), "SD"),
    (context(leg("connect", "connect"), 502, errors.ConnectFailed(upstream="u")), "SC"),
    (context(leg("eof", "wait"), 502, errors.UpstreamLost(upstream="u")), "SH"),
    (context(leg("first_byte_timeout", "wait"),
    504, errors.UpstreamTimeout(upstream="u", what="w")), "SH"),
    (context(leg("cancelled", "wait"), 503, errors.Draining()), "GH"),
    (context(leg("cancelled", "body"), 200), "GD"),
    (context(leg("client_timeout", "wait"), 408, errors.RequestTimeout(what="w")), "CH"),
]  # fmt: skip


@pytest.mark.parametrize(("ctx", "code"), CASES)
def test_termination(ctx: Fake, code: str) -> None:
    assert termination(ctx) == code  # type: ignore[arg-type]


def test_every_code_is_one_that_can_be_counted() -> None:
    for who in "CSG":
        for phase in ("connect", "send", "wait", "body", "done"):
            ctx = context(leg({"C": "client_gone", "S": "eof", "G": "cancelled"}[who], phase), 200)
            assert termination(ctx) in OUTCOMES  # type: ignore[arg-type]


def test_a_fault_in_a_log_is_not_the_requests(caplog: pytest.LogCaptureFixture) -> None:
    left, counted, written = [], [], []
    gatehouse: Any = Fake(leave=lambda: left.append(1))
    stats: Any = Fake(request=counted.append, plain=lambda _: False)
    recorder = Recorder(gatehouse, stats, ResponseMap(), Fake(), Fake())  # type: ignore[arg-type]

    def broken(_: object) -> str:
        raise ValueError("no")

    ctx = context(None, 200)
    ctx.inside, ctx.request_id, ctx.t_end, ctx.path = True, "r", 1.0, b"/v1/x"
    ctx.plan = Fake(logs=((written.append, broken, None),))
    recorder(ctx)  # type: ignore[arg-type]
    assert left == [1] and counted == [ctx] and not written and ctx.termination == "--"


def test_a_stored_response_is_remembered() -> None:
    kept = ResponseMap()
    nobody: Any = Fake(leave=lambda: None, plain=lambda _: True, ended=lambda _: None)
    recorder = Recorder(nobody, nobody, kept, nobody, nobody)
    ctx = context(Fake(error=None, phase="done", reply_id=b"resp_1"), 200)
    engine = Fake(upstream="u", address="e:1")
    ctx.inside, ctx.request_id, ctx.t_end, ctx.attempts = False, "r", 1.0, (Fake(engine=engine),)
    ctx.path = b"/v1/responses"
    ctx.plan = Fake(logs=())
    recorder(ctx)  # type: ignore[arg-type]
    table = Fake(groups={"u": Fake(by_address={"e:1": engine})})
    assert kept.find(b"resp_1", table, 2.0) is engine  # type: ignore[arg-type]
