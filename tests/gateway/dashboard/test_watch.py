"""A place of a browser is free again whatever happens to it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.dashboard.watch import STREAMS_MAX, Watch


def broken(now: float, wall: float) -> None:
    raise OverflowError("a fault of the test's")


async def test_a_first_reading_that_fails_keeps_no_place() -> None:
    said: list[int] = []
    reader = SimpleNamespace(ending=False, read=broken, bounds={})
    watch = Watch(reader, SimpleNamespace(kept=()), said.append)  # type: ignore[arg-type]
    for _ in range(STREAMS_MAX + 1):
        with pytest.raises(OverflowError):
            watch.open()
    assert said[-1] == 0
