"""The bench of what lies between two legs, at tiny scale: its parts work together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "legs.py"


def test_the_bench_measures_every_request() -> None:
    options = ["--json", "-", "--requests", "40", "--blocks", "8", "--words", "60"]
    done = subprocess.run(
        [sys.executable, str(BENCH), *options], stdout=subprocess.PIPE, timeout=90, check=True
    )
    line = json.loads(done.stdout)
    assert [row["requests"] for row in line["rows"]] == [40, 40]
    assert line["second_leg_p99_ms"] > 0 and line["seen_p99_ms"] > 0 and line["limit_ms"] == 2.0
