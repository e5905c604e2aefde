"""A tier that takes longer than computing is left alone, and used again when it is quick."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.tiered import CHUNKS, MISS, PYTHON, RIGHT, Program, Tiered, ours
from harness.kvbm_daemon import DISK, Served
from harness.s3 import S3
from harness.waiting import until

# Computing a block takes about a third of a second, the engine is told.
US_PER_TOKEN = 20_000.0
SENT = 64

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="no vLLM environment; hint: tests/e2e/env.sh env"
)


@pytest.fixture
def program() -> Iterator[Program]:
    with Program() as program:
        yield program


def gated(served: Served) -> int:
    return int(served.status()["counters"]["found_gated"])


def test_a_store_that_became_slow_is_left_alone_until_it_is_quick(
    program: Program, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("any\n")
    with S3() as s3, Served(tmp_path, DISK + s3.tier) as served:
        tier = ours(served.socket, recompute_us_per_token=US_PER_TOKEN)
        with Tiered(program, tier).up() as engine:
            for first in range(0, SENT, CHUNKS):
                engine.store(range(first, first + CHUNKS))
                until(
                    lambda there=first + CHUNKS: served.tier("remote")["sent"] == there,
                    "the sends", 20.0,
                )  # fmt: skip
        served.end()
        shutil.rmtree(tmp_path / "disk")
        served.start()
        blocks = iter(range(SENT))
        with Tiered(program, tier).up() as engine:
            until(lambda: engine.short([0]) == [RIGHT], "what was sent", 10.0)
            s3.delay_s = 2.0

            def is_left_alone() -> bool:
                assert engine.short([next(blocks)]) in ([MISS], [RIGHT])
                return gated(served) > 0

            until(is_left_alone, "that loading does not pay", 60.0)
            s3.delay_s = 0.0
            until(lambda: engine.short([SENT - 1]) == [RIGHT], "that it pays again", 60.0)
