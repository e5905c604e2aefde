"""One request's state: a slot per phase, written once by its phase and read by later ones.

Invariant: nothing is added on the fly. The relay's objects are kept as they are (bytes, not
copies), so building a context costs one allocation. Times are monotonic seconds, as the relay's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.disagg.two_legs import TwoLegs
    from gateway.errors import GatewayError
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import Group
    from gateway.kv.routed import Routed
    from gateway.site.plan import Plan
    from native._core import Grip, Scan
    from native.relay import Client, Edits, Leg, Request


OWN_PATHS = frozenset({b"/kvgate/health", b"/kvgate/ready"})  # answered on every listener
CLIENT_LEFT = 499  # nginx's status for a client that left before its answer; only ever logged


class Attempt:
    """One leg as variables and the record see it: who was asked and how it went."""

    __slots__ = ("engine", "leg", "status")

    engine: Engine
    leg: Leg
    status: int

    def __init__(self, engine: Engine, leg: Leg, status: int) -> None:
        self.engine = engine
        self.leg = leg
        self.status = status  # of the reply's head; 502 or 504 for a leg without one


class Context:
    __slots__ = (
        "attempts",
        "body",
        "broken",
        "bytes_sent",
        "client",
        "delay_s",
        "edits",
        "end",
        "engine",
        "error",
        "first_error",
        "forced",
        "group",
        "held",
        "how",
        "inside",
        "kv",
        "lane",
        "leg",
        "made",
        "method",
        "model",
        "path",
        "pinned",
        "plan",
        "policy",
        "request",
        "request_id",
        "salt",
        "scan",
        "sent",
        "status",
        "stripped",
        "t_end",
        "target",
        "termination",
        "turned",
        "two",
        "word",
    )

    client: Client
    request: Request
    plan: Plan
    path: bytes
    request_id: str
    lane: str
    leg: Leg | None
    status: int
    bytes_sent: int
    t_end: float
    termination: str
    model: str

    def __init__(
        self, client: Client, request: Request, plan: Plan, path: bytes, request_id: str
    ) -> None:
        # admit
        self.client = client
        self.request = request
        self.plan = plan
        self.path = path  # the plain form
        self.request_id = request_id  # made here; the client's own is only echoed
        self.lane = "express"  # or "starlette"
        self.inside = False  # it holds a place of the worker's
        self.held: Grip | None = None  # places in zones of limit_conn
        self.delay_s = 0.0  # how long a rate makes it wait
        self.policy: Mapping[str, str | float] = {}  # what it asks for by policy headers
        self.made: dict[str, str] | None = None  # variables of maps, sets and groups used so far
        # error_page
        self.turned = False  # another location answers instead of an error
        self.forced = 0  # the status of its answer; 0 = its own
        self.first_error: GatewayError | None = None
        self.method = request.method  # of the request to the engine
        self.sent = request.target  # what stands for the target
        # route
        self.scan: Scan | None = None
        self.model = ""  # as the client named it
        self.group: Group | None = None
        self.target = b""
        self.body: bytes | None = None  # what the engine gets
        self.edits: Edits | None = None
        self.salt: str | None = None  # of its cache scope
        self.stripped = 0  # fields and headers that a stranger must not set
        # prompt
        self.kv: Routed | None = None  # only where the prompt decides
        # pick
        self.pinned: Engine | None = None  # the only engine that can answer
        self.engine: Engine | None = None
        self.how = ""  # the method of the pick; "pinned" where only one engine could answer
        # prefill
        self.two: TwoLegs | None = None  # only where another engine computes the prompt
        # decode
        self.leg = None
        self.attempts: tuple[Attempt, ...] = ()  # legs that ended, in order
        # record
        self.status = 0
        self.error: GatewayError | None = None
        self.bytes_sent = 0  # of the body, to the client
        self.t_end = 0.0
        self.termination = ""
        self.end = ""  # of slo.ENDS
        self.broken: tuple[str, ...] = ()  # SLOs
        self.word = ""  # of slo.WORDS: good, or what broke an SLO
