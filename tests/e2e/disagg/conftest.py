"""One pair that pulls and a single engine live for the whole session; see pair.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.disagg import pair as pairs
from e2e.disagg.pair import Pair, Setup


@pytest.fixture(scope="session")
def pair(folder: Path) -> Iterator[Pair]:
    setup = Setup()
    made = Pair(
        pairs.engine("prefill", setup, folder),
        pairs.engine("decode", setup, folder),
        pairs.engine("both", None, folder),
    )
    with pairs.running(made.all):
        yield made
