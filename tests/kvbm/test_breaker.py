"""When a store is left alone."""

from __future__ import annotations

from kvbm.remote import layout
from kvbm.remote.breaker import RECENT, Breaker


def test_failures_in_a_row_open_it_and_one_success_starts_over() -> None:
    breaker = Breaker(3, 10.0)
    for _ in range(2):
        breaker.failed(0.0, "x")
    breaker.succeeded(0.0)
    for _ in range(2):
        breaker.failed(0.0, "x")
    assert not breaker.is_open(0.0)
    breaker.failed(0.0, "no answer")
    assert breaker.is_open(9.9)
    assert breaker.why == "no answer"
    assert not breaker.is_open(10.0)


def test_pauses_double_while_it_goes_on_failing() -> None:
    breaker, now, pauses = Breaker(2, 1.0), 0.0, []
    breaker.failed(now, "x")
    for _ in range(6):
        breaker.failed(now, "x")
        start = now
        while breaker.is_open(now):
            now += 0.5
        pauses.append(now - start)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    breaker.succeeded(now)
    breaker.failed(now, "x")
    breaker.failed(now, "x")
    assert not breaker.is_open(now + 1.0)


def test_failures_during_a_pause_do_not_lengthen_it() -> None:
    breaker = Breaker(1, 10.0)
    for _ in range(50):
        breaker.failed(0.0, "x")
    assert not breaker.is_open(10.0)


def test_a_store_that_crawls_is_left_alone() -> None:
    breaker = Breaker(5, 10.0, slow_s=0.5)
    for _ in range(RECENT - 1):
        breaker.succeeded(0.0, 0.4)
    assert not breaker.is_open(0.0)
    breaker.succeeded(0.0, 0.6)
    assert breaker.is_open(0.0)
    assert "0.60 s" in breaker.why
    for _ in range(RECENT):
        breaker.succeeded(20.0, 0.1)
    assert not breaker.is_open(20.0)


def test_objects_are_named_by_contents() -> None:
    path = layout.block(b"\x01" * 32, b"\xab" * 32)
    assert path == f"v1/{'01' * 32}/ab/{'ab' * 32}"
    print, name, key = b"\x01" * 32, b"\xcd" * 32, b"\xab" * 32
    bundle, mark = layout.bundle(print, name), layout.dropped(print, name, key)
    assert bundle == f"v1/{'01' * 32}/bundles/{'cd' * 32}"
    assert mark == f"{layout.dropped(print, name)}/{'ab' * 32}"
    wrong = [layout.description(print), f"v1/{'01' * 32}/cd/{'ab' * 32}", "", f"{bundle}-"]
    found = layout.listed([(path, 9) for path in (path, bundle, mark, *wrong)])
    assert found.keys == [key]
    assert found.bundles == {name: 9}
    assert found.dropped == {name: [key]}
