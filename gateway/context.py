"""One request's state: a slot per phase, written once by its phase and read by later ones.

Invariant: nothing is added on the fly. The relay's objects are kept as they are (bytes, not
copies), so building a context costs one allocation. Times are monotonic seconds, as the relay's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.engines import Engine, Group
    from gateway.errors import GatewayError
    from gateway.plan import Plan
    from native._core import Scan
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
        "bytes_sent",
        "client",
        "edits",
        "engine",
        "error",
        "group",
        "inside",
        "lane",
        "leg",
        "model",
        "path",
        "pinned",
        "plan",
        "request",
        "request_id",
        "scan",
        "status",
        "stripped",
        "t_end",
        "target",
        "termination",
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
        # route
        self.scan: Scan | None = None
        self.model = ""  # as the client named it
        self.group: Group | None = None
        self.target = b""
        self.body: bytes | None = None  # what the engine gets
        self.edits: Edits | None = None
        self.stripped = 0  # fields and headers that a stranger must not set
        # pick
        self.pinned: Engine | None = None  # the only engine that can answer
        self.engine: Engine | None = None
        # decode
        self.leg = None
        self.attempts: tuple[Attempt, ...] = ()  # legs that ended, in order
        # record
        self.status = 0
        self.error: GatewayError | None = None
        self.bytes_sent = 0  # of the body, to the client
        self.t_end = 0.0
        self.termination = ""
