"""Retries by phase: what may be sent again, and what must not."""

from dataclasses import replace

import pytest

from gateway.conf.model import Location
from gateway.retry import REPLAYS_MAX, Ended, Rules, step


def rules(*words: str, tries: int = 0, timeout_s: float = 0.0) -> Rules:
    return Rules.of(
        Location(
            "", "/", "none", next_upstream=frozenset(words or ("error", "timeout")),
            next_upstream_tries=tries, next_upstream_timeout_s=timeout_s,
        )
    )  # fmt: skip


def ended(error: str | None, **over: object) -> Ended:
    leg = Ended(error, 0, False, False, False, False, 0)
    return replace(leg, **over)  # type: ignore[arg-type]


REFUSED = ended("connect", unsent=True, connecting=True)
STALE = ended("reset", unsent=True, reused=True)


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_refused_connections_are_free(method: bytes) -> None:
    assert step(rules(), method, REFUSED) == "next"
    assert step(rules("http_503"), method, REFUSED) == "next"
    assert step(rules("off"), method, REFUSED) == "fail"


def test_closed_idle_connection_is_replayed_on_the_same_engine() -> None:
    assert step(rules(), b"POST", STALE) == "replay"
    assert step(rules("off"), b"POST", STALE) == "replay"
    assert step(rules(), b"POST", replace(STALE, replays=REPLAYS_MAX)) == "next"


@pytest.mark.parametrize("error", ["reset", "eof", "send_timeout", "first_byte_timeout"])
def test_a_post_that_may_have_run_is_not_repeated(error: str) -> None:
    assert step(rules(), b"POST", ended(error)) == "fail"
    assert step(rules(), b"POST", ended(error, reused=True)) == "fail"
    assert step(rules(), b"GET", ended(error)) == "next"
    assert step(rules("error", "timeout", "non_idempotent"), b"POST", ended(error)) == "next"


def test_only_what_is_listed() -> None:
    assert step(rules("timeout"), b"GET", ended("reset")) == "fail"
    assert step(rules("error"), b"GET", ended("first_byte_timeout")) == "fail"
    assert step(rules(), b"GET", ended("bad_reply")) == "fail"
    assert step(rules("invalid_header"), b"GET", ended("bad_reply")) == "next"


@pytest.mark.parametrize(
    "error", ["client_gone", "cancelled", "total_timeout", "read_timeout", "client_timeout"]
)
def test_never(error: str) -> None:
    everything = rules("error", "timeout", "invalid_header", "non_idempotent")
    assert step(everything, b"GET", ended(error)) == "fail"


def test_never_after_a_byte() -> None:
    everything = rules("error", "timeout", "non_idempotent")
    assert step(everything, b"GET", ended("reset", relayed=True, status=200)) == "done"
    assert step(everything, b"GET", ended("reset", status=200)) == "fail"


def test_statuses() -> None:
    some = rules("error", "http_503", "http_429")
    assert some.on_status(503, b"GET") and some.on_status(429, b"GET")
    assert not some.on_status(503, b"POST") and not some.on_status(500, b"GET")
    assert rules("http_503", "non_idempotent").on_status(503, b"POST")


def test_room() -> None:
    assert rules().room(100, 1e9)
    assert not rules(tries=2).room(2, 0.0)
    assert rules(tries=2).room(1, 0.0)
    assert not rules(timeout_s=5.0).room(1, 5.0)
