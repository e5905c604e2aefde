"""Engines in threads of the test process: they start in milliseconds and end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from engines.sim.process import SimEngine


@pytest.fixture
def sim() -> Iterator[Callable[..., SimEngine]]:
    """Starts engines with the given arguments; they stop when the test ends."""
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(SimEngine(*args, thread=True))


@pytest.fixture(scope="module")
def engine() -> Iterator[SimEngine]:
    """One engine for tests that leave nothing behind."""
    with SimEngine("m", "--tokens", 6, "--enable-prompt-tokens-details", thread=True) as it:
        yield it
