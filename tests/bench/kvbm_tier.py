"""kvbm below vLLM's real tiering manager against vLLM's own file tier, for `kvbm.py`.

Both on the same disk, asked in turn. An engine learns of a load at one of its steps: `ready` is
with steps of 1 ms, `load` with steps of 0.1 ms, which come nearer to what the load itself takes.
What the file tier hands up is not checked by it; what kvbm does is.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median

from e2e.tiered import CHUNKS, PYTHON, Found, Program, Tiered
from harness.kvbm_daemon import Served

from kvbm import engine_config

BLOCK = 1 << 20
STEPS = {"ready": 0.001, "load": 0.0001}


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
            took: dict[str, list[float]] = {}
            for _ in range(rounds):
                for what, step_s in STEPS.items():
                    for whose, tier in (("fs_tier_", theirs), ("", ours)):
                        found = seconds(tier.ask(blocks, step_s=step_s))
                        took.setdefault(whose + what, []).extend(found)
            absent = median(alone.idle(200) for _ in range(rounds))
    ms = {what: median(values) * 1e3 for what, values in took.items()}
    ratios = {f"{what}_vs_fs_tier": ms[f"fs_tier_{what}"] / ms[what] for what in STEPS}
    return {
        **ratios,
        **{f"{what}_ms": value for what, value in ms.items()},
        "tier_absent_us_per_step": absent * 1e6,
    }
