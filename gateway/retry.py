"""Whether a leg that ended may be followed by another: nginx's `proxy_next_upstream`, by phase,
pure.

    nothing was sent (refused, connect time-out)       free, unless `off`
    an idle connection was already closed, and nothing
      of the request was acknowledged                  free, on the same engine, even with `off`
    sent, no byte of the reply came                    if listed; methods that are not idempotent
                                                       (POST) need `non_idempotent`
    a listed status, its reply not yet passed on       likewise
    any byte went to the client, or the client left    never

Invariant: a request that an engine may have seen is never sent twice unless the operator said so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.conf.model import Location

Step = Literal["done", "replay", "next", "fail"]

REPLAYS_MAX = 3  # closed idle connections met by one request; then it counts as a failure
# RFC 9110 §9.2.2
_IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"})
_ERRORS = frozenset({"connect", "reset", "eof"})
_TIMEOUTS = frozenset({"connect_timeout", "send_timeout", "first_byte_timeout"})


@dataclass(frozen=True, slots=True)
class Rules:
    """A location's `proxy_next_upstream*`. `tries` 0 = as many as engines, `timeout_s` 0 = no
    limit.
    """

    off: bool
    error: bool
    timeout: bool
    invalid_header: bool
    non_idempotent: bool
    statuses: frozenset[int]
    tries: int
    timeout_s: float

    @classmethod
    def of(cls, location: Location) -> Rules:
        words = location.next_upstream
        return cls(
            off="off" in words,
            error="error" in words,
            timeout="timeout" in words,
            invalid_header="invalid_header" in words,
            non_idempotent="non_idempotent" in words,
            statuses=frozenset(int(word[5:]) for word in words if word.startswith("http_")),
            tries=location.next_upstream_tries,
            timeout_s=location.next_upstream_timeout_s,
        )

    def room(self, attempts: int, elapsed_s: float) -> bool:
        """Whether another engine may be asked after `attempts` legs."""
        if self.tries and attempts >= self.tries:
            return False
        return not self.timeout_s or elapsed_s < self.timeout_s

    def may_repeat(self, method: bytes) -> bool:
        """Whether a request that was sent may be sent again."""
        return self.non_idempotent or method in _IDEMPOTENT

    def on_status(self, status: int, method: bytes) -> bool:
        """Whether a reply of this status asks for another engine."""
        return not self.off and status in self.statuses and self.may_repeat(method)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a leg ended, in the relay's words."""

    error: str | None
    status: int
    relayed: bool
    unsent: bool
    reused: bool
    connecting: bool  # it ended before it had a connection
    replays: int  # closed idle connections met so far


def step(rules: Rules, method: bytes, leg: Ended) -> Step:
    """What follows. "next" says only that it is allowed: tries and engines are the caller's to
    look at.
    """
    if leg.relayed or leg.error is None:
        return "done"
    if leg.status or leg.error not in _ERRORS | _TIMEOUTS | {"bad_reply"}:
        return "fail"
    if leg.unsent and leg.reused and leg.error in _ERRORS and leg.replays < REPLAYS_MAX:
        return "replay"
    if rules.off:
        return "fail"
    if leg.unsent or leg.connecting:
        return "next"
    return "next" if _listed(rules, leg.error) and rules.may_repeat(method) else "fail"


def _listed(rules: Rules, error: str) -> bool:
    if error in _ERRORS:
        return rules.error
    return rules.timeout if error in _TIMEOUTS else rules.invalid_header
