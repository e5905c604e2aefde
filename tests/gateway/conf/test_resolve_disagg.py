"""What an upstream's directives about disaggregated serving come to."""

from __future__ import annotations

import pytest

from gateway.conf import ConfigErrors, load_text
from gateway.conf.model_kv import NOT_DISAGGREGATED, Disaggregation

REST = "server { listen 1; return 404; }"
TWO = "server 127.0.0.1:1 role=prefill; server 127.0.0.1:2 role=decode; kv_aware;"


def conf(lines: str) -> Disaggregation:
    text = f"http {{ upstream u {{ {lines} }} {REST} }}"
    return load_text(text, "kvgate.conf").upstreams["u"].disaggregation


def test_nothing_said_is_one_engine() -> None:
    assert conf("server 127.0.0.1:1;") == NOT_DISAGGREGATED and not NOT_DISAGGREGATED.wanted


def test_every_value() -> None:
    found = conf(
        f"{TWO} disaggregate always pending=9; kv_lease 1m; kv_connector push;"
        "on_prefill_error local; on_decode_error fail;"
    )
    assert found == Disaggregation("always", 9, "push", 60.0, "local", "fail")
    assert conf(f"{TWO} disaggregate auto;") == Disaggregation("auto")
    both = TWO.replace("role=decode", "role=both")
    elastic = conf(f"{both} disaggregate auto; slo ttft=2s tpot=50ms; roles elastic dwell=2m;")
    assert (elastic.roles, elastic.dwell_s) == ("elastic", 120.0)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("server 127.0.0.1:1 role=decode; server 127.0.0.1:2 role=decode; kv_aware;",
         'no server of upstream "u" can prefill'),
        ("server 127.0.0.1:1 role=prefill; server 127.0.0.1:2 role=prefill; kv_aware;",
         'no server of upstream "u" can decode'),
        (f"{TWO} roles elastic; slo ttft=2s tpot=50ms;", "no server may change its role"),
        ("server 127.0.0.1:1; server 127.0.0.1:2; kv_aware; roles elastic; slo ttft=2s;",
         '"roles elastic" follows two SLOs'),
        ("server 127.0.0.1:1 role=both; kv_aware;", 'upstream "u" has one server only'),
        ("server 127.0.0.1:1 role=prefill; server 127.0.0.1:2;",
         '"disaggregate" needs "kv_aware"'),
    ],
)  # fmt: skip
def test_engines_that_cannot_do_it_together(lines: str, message: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        conf(f"{lines} disaggregate auto;")
    (error,) = caught.value.errors
    assert error.message == message and error.hint


def test_roles_follow_nothing_without_disaggregation() -> None:
    with pytest.raises(ConfigErrors) as caught:
        conf(f"{TWO} roles elastic; slo ttft=2s tpot=50ms;")
    messages = [error.message for error in caught.value.errors]
    assert '"roles elastic" needs "disaggregate"' in messages


def test_both_will_do_for_either() -> None:
    assert conf("server 127.0.0.1:1; server 127.0.0.1:2; kv_aware; disaggregate auto;").wanted


def test_an_idle_prefill_engine_is_warned_of() -> None:
    text = f"http {{ upstream u {{ {TWO} }} {REST} }}"
    (warning,) = load_text(text, "kvgate.conf").warnings
    assert '"role=prefill" gets no requests without "disaggregate"' in warning
