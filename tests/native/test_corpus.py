"""Replays what fuzzing has found and what is known to be nasty, then fuzzes for a few seconds more.

Longer: `python tests/fuzz/request_side.py --seconds 300`, likewise `reply_side.py` and `config.py`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fuzz import config, reply_side, request_side
from fuzz.campaign import Target, hunt, replay

TARGETS = {
    target.name: target for target in (request_side.target(), reply_side.target(), config.target())
}
CORPUS = [(name, path) for name, target in TARGETS.items() for path in target.kept()]
HUNT_S = 3.0


@pytest.mark.parametrize(
    ("name", "path"), CORPUS, ids=[f"{name}-{path.stem}" for name, path in CORPUS]
)
def test_corpus(name: str, path: Path) -> None:
    """Every kept input passes its target's oracles, uncut and under a dozen cuts."""
    replay(TARGETS[name], path.read_bytes())


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_few_seconds_of_fuzzing_find_nothing(name: str) -> None:
    """A new seed each day, so that runs add up; the failure names it by the kept input."""
    target: Target = TARGETS[name]
    assert target.kept(), "the corpus is gone"
    assert hunt(target, HUNT_S, int(time.time()) // 86_400) > 100
