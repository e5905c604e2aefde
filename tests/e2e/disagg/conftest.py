"""One pair that pulls and a single engine live for the whole session, from when they are first
needed; see pair.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.disagg import pair as pairs
from e2e.disagg.pair import Pair, Setup
from e2e.fleet import Engine


@pytest.fixture(scope="session")
def single(folder: Path) -> Iterator[Engine]:
    made = pairs.engine("both", None, folder)
    with pairs.running((made,)):
        yield made


@pytest.fixture(scope="session")
def pair(single: Engine, folder: Path) -> Iterator[Pair]:
    made = pairs.pair(Setup(), single, folder)
    with pairs.running((made.prefill, made.decode)):
        yield made
