"""Every name of uvicorn that gateway/process/server.py leans on. uvicorn's minor version is
pinned; when the pin moves, this says what to look at.
"""

from __future__ import annotations

import inspect

import pytest
import uvicorn
from uvicorn.lifespan.on import LifespanOn

from gateway.process.server import Server


def source(function: object) -> str:
    return inspect.getsource(function)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["startup", "shutdown", "main_loop", "on_tick", "capture_signals"])
def test_the_servers_steps_are_there(name: str) -> None:
    assert callable(getattr(uvicorn.Server, name))


def test_serve_runs_our_steps_in_order_under_our_signal_handlers() -> None:
    assert "with self.capture_signals():" in source(uvicorn.Server.serve)
    steps = source(uvicorn.Server._serve)
    order = ["config.load()", "self.lifespan = config.lifespan_class(config)", "self.startup("]
    order += ["self.main_loop()", "self.shutdown("]
    places = [steps.index(step) for step in order]
    assert places == sorted(places)
    assert "if self.started:" in steps, "a server that never started must not be shut down"


def test_the_main_loop_ends_by_the_flag_that_our_handler_sets() -> None:
    assert "if self.should_exit:" in source(uvicorn.Server.on_tick)
    for name in ("should_exit", "force_exit", "started"):
        assert f"self.{name} = False" in source(uvicorn.Server.__init__)


def test_overrides_keep_the_signatures() -> None:
    for name in ("startup", "shutdown", "capture_signals"):
        ours = inspect.signature(getattr(Server, name)).parameters
        theirs = inspect.signature(getattr(uvicorn.Server, name)).parameters
        assert list(ours) == list(theirs), name


def test_the_configuration_takes_what_we_give_and_has_what_we_read() -> None:
    parameters = inspect.signature(uvicorn.Config).parameters
    for name in (
        "app",
        "loop",
        "http",
        "ws",
        "lifespan",
        "interface",
        "proxy_headers",
        "log_config",
    ):
        assert name in parameters, name
    assert "self.loaded_app" in source(uvicorn.Config.load)
    assert "self.lifespan_class" in source(uvicorn.Config.load)


def test_the_lifespan_says_when_starting_failed() -> None:
    for name in ("startup", "shutdown"):
        assert inspect.iscoroutinefunction(getattr(LifespanOn, name))
    assert "self.should_exit" in source(LifespanOn.startup)
