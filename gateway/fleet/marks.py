"""Passive marks: nginx's `max_fails` and `fail_timeout`, as a pure state machine over given times.

An engine whose requests failed `max_fails` times within `fail_timeout` is benched for
`fail_timeout`; then one request may try it, and its success clears the marks. Only what speaks of
the engine counts: a client's mistake (4xx) is neither a failure nor a success.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from native.relay import Leg


FAILED, OK, NEUTRAL = "failed", "ok", "neutral"
_ENGINE_STATUSES = frozenset({502, 503, 504})
_ENGINE_ERRORS = frozenset(
    {"connect", "connect_timeout", "send_timeout", "first_byte_timeout", "bad_reply"}
)


class Marks:
    """Times are monotonic seconds. `max_fails` 0 switches marks off."""

    __slots__ = ("accessed", "checked", "fail_timeout_s", "fails", "max_fails")

    def __init__(self, max_fails: int, fail_timeout_s: float) -> None:
        self.max_fails = max_fails
        self.fail_timeout_s = fail_timeout_s
        self.fails = 0
        self.accessed = 0.0  # of the last failure
        self.checked = 0.0  # start of the present window, or of the trial

    @property
    def benched(self) -> bool:
        """Too many failures; whether the time is over is `until`."""
        return bool(self.max_fails) and self.fails >= self.max_fails

    @property
    def until(self) -> float:
        """When a benched engine may be tried again."""
        return self.checked + self.fail_timeout_s

    def fail(self, now: float) -> bool:
        """Counts a failure; whether it benched the engine just now."""
        if not self.max_fails:
            return False
        before = self.fails >= self.max_fails
        if now - self.accessed > self.fail_timeout_s and not before:
            self.fails = 0
        self.fails += 1
        self.accessed = self.checked = now
        return not before and self.fails >= self.max_fails

    def succeed(self) -> bool:
        """Clears the marks; whether the engine was benched."""
        was = self.benched
        self.fails = 0
        return was

    def picked(self, now: float) -> None:
        """A request goes there: on a benched engine it is the one trial of this period."""
        if self.benched:
            self.checked = now

    def reset(self) -> None:
        self.fails = 0


def judge(error: str | None, status: int, *, unsent_reuse: bool, retry_after: bool) -> str:
    """What one leg says of its engine.

    `unsent_reuse`: an idle connection turned out to be closed, nothing of the request was seen;
    `retry_after`: the reply asks to come back, which a healthy engine under load does. A 500 says
    nothing by itself: a request that no engine can stand gives one everywhere. Nor does a break
    after the head: the engine answered.
    """
    if error is None:
        if status in _ENGINE_STATUSES:
            return NEUTRAL if retry_after else FAILED
        return OK if 0 < status < 400 else NEUTRAL
    if error in _ENGINE_ERRORS:
        return FAILED
    if error in ("reset", "eof"):
        return NEUTRAL if status or unsent_reuse else FAILED
    return NEUTRAL


def of_leg(leg: Leg) -> str:
    """What a leg that ended says of its engine."""
    asks_back = leg.error is None and leg.status >= 500
    return judge(
        leg.error,
        leg.status,
        unsent_reuse=leg.unsent and leg.reused,
        retry_after=asks_back and any(n == b"retry-after" for n, _ in leg.reply_headers or ()),
    )
