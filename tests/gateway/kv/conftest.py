"""A gateway in this process in front of simulated engines, all on real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from engines.sim.process import SimEngine

LANES = ("express", "starlette")
Start = Callable[..., SimEngine]


@pytest.fixture
def sim() -> Iterator[Start]:
    """`sim(*args)` starts a simulated engine in a thread."""
    with ExitStack() as stack:

        def start(*args: object) -> SimEngine:
            wanted = ["--enable-prompt-tokens-details", "--record", *args]
            return stack.enter_context(SimEngine(*wanted, thread=True))

        yield start


def conf(
    engines: list[SimEngine], upstream: str = "", location: str = "", lane: str = "express"
) -> str:
    """An http block: one kv_aware upstream of these engines, receipts exposed."""
    servers = " ".join(f"server {engine.address};" for engine in engines)
    express = "on" if lane == "express" else "off"
    return (
        f"upstream sim {{ {servers} kv_aware; health_check off; {upstream} }}"
        f"server {{ listen 127.0.0.1:0; location / {{ proxy_pass http://sim; express {express};"
        f" expose_receipt on; {location} }} }}"
    )
