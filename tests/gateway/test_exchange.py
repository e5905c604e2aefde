"""The life of an exchange under every order of leg outcomes: counted once, nothing lost."""

from __future__ import annotations

from types import SimpleNamespace as Fake

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import app as wiring
from gateway import legs
from gateway.conf import load_text
from gateway.context import Context
from gateway.exchange import Exchange

CONF = """http {{ access_log off; upstream main {{ {servers} health_check off; }}
server {{ listen 127.0.0.1:0; location / {{ proxy_pass http://main; {location} }} }} }}"""


class Leg:
    """A leg that ends as the test says. `sent`: an engine may have seen the request."""

    def __init__(self, client, request, pool, request_plan, reply_plan, owner) -> None:  # type: ignore[no-untyped-def]
        self.client, self.owner = client, owner
        self.reply_headers = None
        self.reply_status = 0
        self.reply_extra, self.detail, self.reply_id = b"", "", b""
        self.sse, self.t_first, self.t_last, self.itl_max = False, 0.0, 0.0, 0.0
        self.t_start = self.t_connected = self.t_head = self.t_end = 1.0
        self.bytes_sent = self.bytes_received = self.bytes_to_client = self.chunks = 0
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = -1
        self.counts = (-1, -1, -1, -1)

    def times(self, arrived: float, duration: float, complete: bool) -> tuple[float, ...]:
        return (-1.0, -1.0, self.t_end - arrived if complete else -1.0, duration, *(-1.0,) * 4)

    def start(self) -> None:
        if self.client.left:
            raise RuntimeError("the client is not waiting")
        self.client.running = self

    def end(self, outcome: dict[str, object]) -> None:
        for name, value in {**BLANK, **outcome}.items():
            setattr(self, name, value)
        self.client.running = None
        hooked = self.status in (502, 503) and self.error is None  # type: ignore[attr-defined]
        if hooked and not self.owner.leg_head(self):
            self.relayed = False
        self.owner.leg_done(self)

    def cancel(self, why: str = "cancelled") -> None:
        self.end({"error": why})


BLANK: dict[str, object] = {
    "status": 0, "error": None, "relayed": False, "unsent": False, "reused": False, "phase": "wait",
}  # fmt: skip
DONE = {"status": 200, "relayed": True, "phase": "done"}
REFUSED = {"error": "connect", "unsent": True, "phase": "connect"}
STALE = {"error": "reset", "unsent": True, "reused": True}
LOST = {"error": "eof"}
SLOW = {"error": "first_byte_timeout"}
BUSY = {"status": 503, "relayed": True, "phase": "done"}
CUT = {"error": "reset", "status": 200, "relayed": True, "phase": "body"}
GONE = {"error": "client_gone"}
OUTCOMES = (DONE, REFUSED, STALE, LOST, SLOW, BUSY, CUT, GONE)


class Client:
    peer, local, tls, requests = "127.0.0.1:1", "127.0.0.1:2", False, 1

    def __init__(self) -> None:
        self.running: Leg | None = None
        self.left = False
        self.replies: list[int] = []

    def reply(self, request, status, headers, body, close=False) -> None:  # type: ignore[no-untyped-def]
        self.replies.append(status)


@pytest.fixture(scope="module")
def apps():  # type: ignore[no-untyped-def]
    """Gateways by number of engines, with and without non_idempotent."""
    real, legs.Leg = legs.Leg, Leg  # type: ignore[misc, assignment]
    made = {}
    for engines in (1, 2, 4):
        for free in (False, True):
            servers = " ".join(f"server 127.0.0.1:{n + 1};" for n in range(engines))
            words = "error timeout http_503" + (" non_idempotent" if free else "")
            text = CONF.format(servers=servers, location=f"proxy_next_upstream {words};")
            made[engines, free] = wiring.build(load_text(text))
    yield made
    legs.Leg = real  # type: ignore[misc]


def begin(app: wiring.App, client: Client) -> Exchange:
    plan, path = app.listeners[0].server_ctx.site.find(b"x", b"/v1/completions")  # type: ignore[attr-defined]
    request = Fake(
        method=b"POST", target=path, path=path, query=None, version=11, body=b"{}", head_bytes=9,
        content_length=2, t0=0.0, t_head=0.0, context=None, get=lambda name, default=None: default,
        has_prefix=lambda prefix: False,
    )  # fmt: skip
    ctx = Context(client, request, plan, path, "r")  # type: ignore[arg-type]
    exchange = Exchange(app.pipeline, ctx)
    assert app.pipeline.gatehouse.enter(ctx) is None
    ctx.group, ctx.target, ctx.body = plan.group, path, b"{}"
    exchange.begin()
    return exchange


def recorded(app: wiring.App) -> int:
    stats = app.pipeline.stats
    return sum(count for h in stats.series.values() for _, _, count in stats.snapshot(h).requests)


@settings(max_examples=300, deadline=None)
@given(
    script=st.lists(st.sampled_from(range(len(OUTCOMES))), min_size=1, max_size=12),
    engines=st.sampled_from((1, 2, 4)),
    free=st.booleans(),
    leave_before=st.integers(0, 12),
)
def test_whatever_happens_it_ends_once(apps, script, engines, free, leave_before) -> None:  # type: ignore[no-untyped-def]
    app = apps[engines, free]
    before = recorded(app)
    client = Client()
    client.left = leave_before == 0
    exchange = begin(app, client)
    seen = 0
    for step, at in enumerate(script, 1):
        if client.running is None:
            break
        outcome = OUTCOMES[at]
        seen += not outcome.get("unsent", False)
        client.left = client.left or step == leave_before
        client.running.end(outcome)
    if client.running is not None:
        client.running.end(GONE)
        seen += 1
    assert exchange.over and recorded(app) == before + 1
    assert len(client.replies) <= 1
    assert free or seen <= 1, "a POST that may have run was sent again"
    assert app.pipeline.gatehouse.active == 0
    for engine in app.table.groups["main"].engines:
        assert app.table.ledger.in_flight(engine.slot) == 0


def test_a_fault_of_ours_is_a_500_and_still_one_record(apps, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """PS#1001: exceptions thrown in the middle leaked in-flight counts."""
    app = apps[2, False]
    before = recorded(app)
    client = Client()
    exchange = begin(app, client)
    running = client.running
    assert running is not None

    def broken(self, leg):  # type: ignore[no-untyped-def]
        raise ValueError("a defect")

    monkeypatch.setattr(Exchange, "_ended", broken)
    running.end(LOST)
    assert client.replies == [500] and exchange.over and recorded(app) == before + 1
    assert app.pipeline.gatehouse.active == 0
    for engine in app.table.groups["main"].engines:
        assert app.table.ledger.in_flight(engine.slot) == 0


@pytest.mark.parametrize(
    ("script", "status", "legs"),
    [
        ([REFUSED, DONE], 200, 2),
        ([STALE, DONE], 200, 2),
        ([LOST], 502, 1),
        ([SLOW], 504, 1),
        ([REFUSED, REFUSED, REFUSED, REFUSED], 502, 4),
        ([BUSY], 503, 1),
        ([CUT], 200, 1),
        ([GONE], 499, 1),
    ],
)
def test_outcomes(apps, script, status, legs) -> None:  # type: ignore[no-untyped-def]
    client = Client()
    exchange = begin(apps[4, False], client)
    taken = 0
    for outcome in script:
        assert client.running is not None
        taken += 1
        client.running.end(outcome)
    assert exchange.over and exchange.ctx.status == status and taken == legs
