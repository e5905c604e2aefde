"""Daemons beside a directory that they share, and an object store that can be made to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.s3 import S3
from harness.stored import Two, machines


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    yield from machines(tmp_path)


@pytest.fixture
def store() -> Iterator[S3]:
    with S3() as store:
        yield store
