"""Each broken file of the corpus gets exactly the messages beside it (accept.py writes them)."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORPUS = Path(__file__).parents[3] / "tests" / "golden" / "conf"
FILES = sorted(CORPUS.glob("*.conf"))

_spec = importlib.util.spec_from_file_location("conf_accept", HERE / "accept.py")
assert _spec is not None and _spec.loader is not None
accept = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(accept)

_HEAD = re.compile(r"^(\S+?)(?::(\d+):(\d+))?: (error|warning): ", re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_messages(path: Path) -> None:
    assert accept.messages(path.name) == path.with_suffix(".expected").read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_severity_and_places(path: Path) -> None:
    """Files named warn_* get warnings only, all others errors; places are in the files."""
    found = _HEAD.findall(path.with_suffix(".expected").read_text())
    severities = {severity for *_, severity in found}
    accepted = path.stem.startswith("warn_")
    assert severities == {"warning"} if accepted else "error" in severities
    for file, line, column, _ in found:
        if line:
            lines = (CORPUS / file).read_bytes().decode().split("\n")
            assert 1 <= int(column) <= len(lines[int(line) - 1]) + 1


def test_no_secret_is_shown() -> None:
    for path in CORPUS.glob("*.expected"):
        assert "sk-" not in path.read_text(), path.name


def test_corpus_is_broad() -> None:
    assert len(FILES) >= 80
