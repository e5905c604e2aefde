"""Publishing engines in threads of the test process, and a subscriber with a book of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from harness import kv_events as kv
from harness.watched import Watched

from engines.sim.process import SimEngine
from gateway.kv import caches, discovery, sequence

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


@pytest.fixture
def watch(gateway: Any, quick: None) -> Any:
    """`await watch(conf text)` starts a gateway that follows at once."""

    async def start(text: str) -> Watched:
        return Watched(await gateway(text))

    return start


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that pass in a test."""
    for module, name, value in (
        (discovery, "ASK_S", 1.0), (discovery, "RETRY_S", 0.1), (discovery, "AGAIN_S", 0.05),
        (caches, "LOOK_S", 0.02), (caches, "AGAIN_S", 0.1), (sequence, "LOST_S", 0.5),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
