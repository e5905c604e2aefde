"""Policy headers: what a location takes, and what a request's value means."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.conf import load_text
from gateway.conf.model import Location, PolicyHeader
from gateway.conf.policies import POLICIES, full_name, read
from gateway.conf.units import BadValue


def location(in_http: str = "", in_server: str = "") -> Location:
    config = load_text(f"http {{ {in_http} server {{ listen 1; {in_server} return 404; }} }}")
    return config.servers[0].locations[0]


def test_policy_headers() -> None:
    found = location(
        "policy_header X-KVGate-Session;",
        "trusted_from 10.0.0.0/8 unix:;"
        "policy_header x-kvgate-policy allow=kv,least; policy_header X-KVGate-TTFT-SLO max=10s;"
        "policy_header X-KVGate-Engine; policy_header X-KVGate-Priority min=-5 max=5;"
        "policy_header_alias X-Route X-KVGate-Policy; policy_header_alias X-Way X-KVGate-Policy;",
    )
    policy, ttft, engine, priority = found.policy_headers
    assert policy == PolicyHeader("X-KVGate-Policy", "enum", ("kv", "least"))
    assert (ttft.kind, ttft.low, ttft.high) == ("duration", 0.001, 10.0)
    assert engine.trusted and not policy.trusted
    assert (priority.low, priority.high) == (-5, 5)
    assert found.policy_aliases == (("x-route", "X-KVGate-Policy"), ("x-way", "X-KVGate-Policy"))
    assert found.trusted_from == ("10.0.0.0/8", "unix:")
    assert location().policy_headers == ()


@pytest.mark.parametrize(
    ("header", "value", "expected"),
    [
        (PolicyHeader("P", "enum", ("kv", "least")), "kv", "kv"),
        (PolicyHeader("P", "enum", ("kv", "least")), "hash", "one of kv, least"),
        (PolicyHeader("P", "token"), "abc", "abc"),
        (PolicyHeader("P", "token"), "a b", "1 to 256 visible characters"),
        (PolicyHeader("P", "token"), "x" * 257, "1 to 256 visible characters"),
        (PolicyHeader("P", "duration", low=0.1, high=10), "250ms", 0.25),
        (PolicyHeader("P", "duration", low=0.1, high=10), "2", 2.0),
        (PolicyHeader("P", "duration", low=0.1, high=10), "50ms", "at least 100ms"),
        (PolicyHeader("P", "duration", low=0.1, high=10), "11s", "at most 10s"),
        (PolicyHeader("P", "duration", low=0.1, high=10), "soon", "a time such as"),
        (PolicyHeader("P", "integer", low=-5, high=5), "-5", -5),
        (PolicyHeader("P", "integer", low=-5, high=5), "6", "at most 5"),
        (PolicyHeader("P", "integer", low=-5, high=5), "1.0", "a whole number"),
        (PolicyHeader("P", "number", low=0, high=1.5), "0.25", 0.25),
        (PolicyHeader("P", "number", low=0, high=1.5), "1.6", "at most 1.5"),
        (PolicyHeader("P", "number", low=0, high=1.5), "nan", "a number such as"),
    ],
)
def test_policy_value(header: PolicyHeader, value: str, expected: str | float) -> None:
    if isinstance(expected, str) and value != expected:
        with pytest.raises(BadValue) as error:
            read(header, value)
        assert error.value.expected.startswith(expected)
    else:
        assert read(header, value) == expected


@pytest.mark.parametrize("policy", POLICIES, ids=full_name)
def test_policy_header_without_attributes_takes_the_whole_range(policy: Any) -> None:
    lines = f"trusted_from 10.0.0.1; policy_header {full_name(policy)};"
    (found,) = location(lines).policy_headers
    assert (found.kind, found.allow) == (policy.kind, policy.words)
    assert (found.low, found.high, found.trusted) == (policy.low, policy.high, policy.trusted)
