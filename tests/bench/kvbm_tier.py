"""kvbm below vLLM's real tiering manager against vLLM's own file tier, for `kvbm.py`.

Both on the same disk, asked in turn, with a millisecond between an engine's steps. What the file
tier hands up is not checked by it; what kvbm does is.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median

from e2e.tiered import CHUNKS, PYTHON, Found, Program, Tiered
from harness.kvbm_daemon import Served

from kvbm import engine_config

BLOCK = 1 << 20


def is_possible() -> bool:
    return PYTHON.exists()


def seconds(found: Iterable[Found]) -> list[float]:
    """From the lookup until the block was in host memory."""
    found = list(found)
    assert all(one.right for one in found)
    return [one.s for one in found]


def tier(root: Path, rounds: int) -> dict[str, float]:
    folder = root / "tier"
    folder.mkdir()
    blocks = range(4 * CHUNKS)
    with (
        Program() as program,
        Served(folder, "disk { path disk; size 2g; segment 64m; }\n") as daemon,
    ):
        options = engine_config.tier(daemon.socket)["kv_connector_extra_config"]
        files = {"type": "fs", "root_dir": str(folder / "files")}
        nobody = {**options["secondary_tiers"][0], "socket": str(folder / "nobody")}
        with (
            Tiered(program, options["secondary_tiers"][0], bytes=BLOCK) as ours,
            Tiered(program, files, bytes=BLOCK) as theirs,
            Tiered(program, nobody) as alone,
        ):
            ours.up().store(blocks)
            theirs.store(blocks)
            mine: list[float] = []
            other: list[float] = []
            for _ in range(rounds):
                other += seconds(theirs.ask(blocks))
                mine += seconds(ours.ask(blocks))
            absent = median(alone.idle(200) for _ in range(rounds))
    return {
        "ready_vs_fs_tier": median(other) / median(mine),
        "ready_ms": median(mine) * 1e3,
        "fs_tier_ready_ms": median(other) * 1e3,
        "tier_absent_us_per_step": absent * 1e6,
    }
