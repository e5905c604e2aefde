"""Waiting on a condition with a deadline, the only way a test lets time pass.

Invariant: nothing here waits for luck. A wait ends as soon as its condition holds, and a deadline
that passes is an error that names what was awaited.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_S = 0.005


class NeverHappened(AssertionError):
    """The awaited condition did not hold before its deadline."""


def until(condition: Callable[[], T], what: str, timeout_s: float = 5.0) -> T:
    """Polls until `condition()` is true and returns its value.

    Raises `NeverHappened` with `what` and the last value after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise NeverHappened(f"not within {timeout_s} s: {what} (last: {value!r})")
        pause.wait(POLL_S)


def until_clock(moment: float) -> None:
    """Returns when the monotonic clock reads `moment`: for faults about idle time itself."""
    pause = threading.Event()
    while (left := moment - time.monotonic()) > 0:
        pause.wait(left)


def until_still(
    value: Callable[[], int], what: str, timeout_s: float, still_s: float = 0.4
) -> None:
    """Returns once `value()` is above 0 and has not changed for `still_s` seconds."""
    last, since = -1, time.monotonic()

    def still() -> bool:
        nonlocal last, since
        if (now := value()) != last:
            last, since = now, time.monotonic()
        return now > 0 and time.monotonic() - since > still_s

    until(still, what, timeout_s)
