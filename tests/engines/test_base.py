"""Both kinds of engine are what the rest may assume, and the simulated one keeps the constants."""

from __future__ import annotations

from engines import base
from engines.sim import cli, server
from engines.sim.process import SimEngine
from engines.vllm.launch import ChildServer


def test_both_kinds_are_engine_servers() -> None:
    assert isinstance(SimEngine("m"), base.EngineServer)
    assert all(hasattr(ChildServer, name) for name in ("pid", "kill", "stop", "__exit__"))


def test_the_simulated_engine_serves_the_paths() -> None:
    for path in (base.HEALTH, base.MODELS, base.METRICS, base.EVENT_SOURCES):
        assert "GET" in server.ROUTES[path]


def test_the_keepalive_is_the_engines_default() -> None:
    assert cli.settings([]).keepalive_s == base.KEEPALIVE_S
