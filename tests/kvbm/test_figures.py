"""Each figure that a daemon tells is explained, and what it counts is there."""

from __future__ import annotations

from pathlib import Path

from harness.kvbm_daemon import DISK, Served, command

from kvbm.figures import ONLY_SHOWN
from kvbm.metrics import EVERY
from kvbm.shown import stat
from kvbm.status import TIERS


def test_every_figure_is_explained_once(tmp_path: Path) -> None:
    remote = f"remote {{ url file://{tmp_path}/shared; }}"
    events = f"events ipc://{tmp_path}/events;"
    with Served(tmp_path, f"host {{ size 8m; }}\n{DISK}{remote}\n{events}\n") as served:
        status = served.status()
    told = set(status["counters"])
    told |= {f"{tier}_{name}" for tier in TIERS for name in status["tiers"][tier]}
    metrics = {figure for metric in EVERY for _, figure in metric.sources if figure}
    assert told == metrics | ONLY_SHOWN.keys()
    assert not metrics & ONLY_SHOWN.keys()


def test_other_bytes_are_all_that_is_no_segment(tmp_path: Path) -> None:
    """kvbm's own journal and first page, too: a fresh directory has some."""
    root = tmp_path / "disk"

    def others() -> int:
        paths = [path for path in root.rglob("*") if not path.name.startswith("segment-")]
        return sum(path.stat().st_blocks * 512 for path in paths)

    with Served(tmp_path) as served:
        fresh = served.tier("disk")["other_bytes"]
        assert fresh > 0
        assert abs(fresh - others()) <= 16 << 10, "files may grow by a page meanwhile"
        assert served.end() == 0
        (root / "somebodys").write_bytes(b"x" * 100_000)
        served.start()
        assert served.tier("disk")["other_bytes"] >= 100_000
    metric = next(m for m in EVERY if m.sources[:1] == (((), "disk_other_bytes"),))
    assert metric.name == "kvbm_other_bytes"
    assert "journal" in metric.help


def test_stat_says_which_tier_does_not_serve(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        document = served.status()
        assert "does not serve" not in command("stat", "-c", str(served.file)).stdout
    document["tiers"]["disk"]["good"] = 0
    assert "disk: 0 blocks" in stat(document)
    assert ": does not serve" in stat(document)
