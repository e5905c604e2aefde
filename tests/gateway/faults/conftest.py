"""Fixtures of the fault tests: each runs once per lane against a real gateway process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from harness.stage import LANES, PLAIN, Conf, Stage, Stages

_STAGES_KEY = pytest.StashKey[list[Stage]]()


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest) -> str:
    """The lane that a request goes through: the name of the server that it is sent to."""
    return str(request.param)


@pytest.fixture(scope="session")
def stages() -> Iterator[Stages]:
    stages = Stages()
    yield stages
    stages.close()


@pytest.fixture
def play(request: pytest.FixtureRequest, stages: Stages) -> Iterator[Callable[[Conf], Stage]]:
    """`play(conf)` hands out a clean stage; after the test it must be quiet."""
    taken: list[Stage] = []
    request.node.stash[_STAGES_KEY] = taken

    def get(conf: Conf) -> Stage:
        stage = stages.get(conf)
        taken.append(stage)
        return stage

    yield get
    for stage in taken:
        try:
            stage.close()
        except BaseException:
            stages.drop(stage)
            raise
        if getattr(request.node, "failed", False):
            stages.drop(stage)


@pytest.fixture
def stage(play: Callable[[Conf], Stage]) -> Stage:
    """The plain stage: one engine, no health checks, no marks."""
    return play(PLAIN)


@pytest.fixture
def own(request: pytest.FixtureRequest, stages: Stages) -> Iterator[Callable[[Conf], Stage]]:
    """`own(conf)` starts a stage that is not shared: for tests that stop or kill its gateway."""
    taken: list[Stage] = []
    request.node.stash[_STAGES_KEY] = taken

    def get(conf: Conf) -> Stage:
        taken.append(stages.fresh(conf))
        return taken[-1]

    yield get
    for stage in taken:
        stage.discard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> object:
    """Shows the tail of the gateway's log with a failure."""
    report = yield
    if report.failed:
        item.failed = True  # type: ignore[attr-defined]
        for stage in item.stash.get(_STAGES_KEY, []):
            report.sections.append(("gateway log", stage.gateway.log()[-3000:]))
    return report
