"""The headers by which a request may choose a policy: what each may say, and how a value is read.

One table for `-t`, the reference and the gateway. A value that cannot be read, or lies outside the
bounds of its location, is the client's mistake: `read` says what would have been right.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gateway.conf import units
from gateway.conf.model import PolicyHeader
from gateway.conf.units import BadValue

TOKEN_MAX = 256  # characters of a session, scope or engine name
_TOKEN = re.compile(rf"[!-~]{{1,{TOKEN_MAX}}}")
_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,6})?")
PREFIX = "X-KVGate-"


@dataclass(frozen=True, slots=True)
class Policy:
    """`attributes`: which of allow, min and max a `policy_header` line may give."""

    name: str
    kind: str  # enum | token | duration | integer | number
    doc: str
    attributes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # of an enum
    low: float = 0.0
    high: float = 0.0
    trusted: bool = False


_BOUNDS = ("min", "max")
_YEAR = units.TIME_MAX_S

POLICIES = (
    Policy("Policy", "enum", "how the engine is chosen", ("allow",),
           ("kv", "least", "hash", "random", "round_robin")),
    Policy("Session", "token", "requests of one session meet the same engine"),
    Policy("Disaggregate", "enum", "whether prefill and decode run on two engines", ("allow",),
           ("auto", "always", "never")),
    Policy("Priority", "integer", "place in the queue, lower is earlier", _BOUNDS,
           low=-1_000_000, high=1_000_000),
    Policy("Overlap-Weight", "number", "how much a cached prefix counts against load", _BOUNDS,
           low=0, high=100),
    Policy("TTFT-SLO", "duration", "wanted time to the first token", _BOUNDS,
           low=0.001, high=_YEAR),
    Policy("TPOT-SLO", "duration", "wanted time per output token", _BOUNDS,
           low=0.001, high=_YEAR),
    Policy("Timeout", "duration", "total time; may only lower the location's", _BOUNDS,
           low=0.001, high=_YEAR),
    Policy("Retries", "integer", "further engines tried; may only lower the location's", _BOUNDS,
           low=0, high=1000),
    Policy("Cache-Scope", "token", "requests of other scopes share no cached prefix", ("allow",)),
    Policy("Engine", "token", "the one engine to use, as on its server line", trusted=True),
)  # fmt: skip
BY_NAME = {(PREFIX + policy.name).lower(): policy for policy in POLICIES}


def full_name(policy: Policy) -> str:
    return PREFIX + policy.name


def number(kind: str, text: str) -> float:
    """A bound or a value of that kind: durations in seconds. Raises BadValue."""
    if kind == "duration":
        return units.seconds(text)
    if kind == "integer":
        if not re.fullmatch(r"-?[0-9]{1,9}", text):
            raise BadValue("a whole number")
        return int(text)
    if not _NUMBER.fullmatch(text):
        raise BadValue("a number such as 0.5")
    return float(text)


def read(header: PolicyHeader, text: str) -> str | float:
    """What a request's header says: a word, or a number (durations in seconds). Raises BadValue
    whose `expected` names the form or the bound."""
    if header.kind in ("enum", "token"):
        if header.allow and text not in header.allow:
            raise BadValue(f"one of {', '.join(header.allow)}")
        if not _TOKEN.fullmatch(text):
            raise BadValue(f"1 to {TOKEN_MAX} visible characters")
        return text
    value = number(header.kind, text)
    if math.isnan(value) or value < header.low:
        raise BadValue(f"at least {shown(header.kind, header.low)}")
    if value > header.high:
        raise BadValue(f"at most {shown(header.kind, header.high)}")
    return value


def shown(kind: str, value: float) -> str:
    """A bound as it would be written."""
    if kind == "duration":
        return f"{value * 1000:.0f}ms" if value % 1 else f"{value:.0f}s"
    return f"{value:g}" if kind == "number" else f"{value:.0f}"
