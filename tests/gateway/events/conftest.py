"""Publishing engines in threads of the test process, and a subscriber with a book of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from harness import kv_events as kv

from engines.sim.process import SimEngine

Start = Callable[..., SimEngine]


@pytest.fixture
def sim() -> Iterator[Start]:
    """Starts publishing engines."""
    with ExitStack() as stack:
        yield lambda *args, **config: stack.enter_context(kv.engine(*args, **config))


@pytest.fixture
def followed() -> Iterator[kv.Followed]:
    one = kv.Followed()
    yield one
    one.close()
