"""Reloads, a change of the program and deaths of workers under load: the short form of
tests/bench/reload_storm.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

STORM = Path(__file__).parents[2] / "bench" / "reload_storm.py"


def storm(*options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, str(STORM), "--streams", "60", "--rate", "100", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


def test_reloads_and_a_new_program_lose_nothing() -> None:
    status, found = storm("--reloads", "20")
    assert status == 0, found
    assert found["streams"]["done"] > 60 and found["small"]["done"] > 200
    assert found["generation"] == 11  # of the new program: the second half


def test_killed_workers_take_only_what_was_theirs() -> None:
    """Nothing is left in flight (the storm waits for that), and most goes on."""
    _, found = storm("--reloads", "8", "--kill", "2", "--pause", "0.3")
    streams, small = found["streams"], found["small"]
    assert set(streams["errors"]) | set(small["errors"]) <= {"lost"}, found
    assert sum(streams["errors"].values()) <= 2 * 60
    assert sum(small["errors"].values()) <= 2 * 32
    assert small["done"] > 100
