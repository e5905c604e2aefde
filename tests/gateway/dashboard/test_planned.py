"""What the planner said last is on the page, with its age; a broken report is said, not hidden."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway import plan_report
from gateway.plan_report import BYTES_MAX, Reports

REPORT: dict[str, Any] = {
    "verdict": {"sentence": "Disaggregation pays here: 5P3D."},
    "best": "5P3D",
    "attainment": 0.91,
    "now": {"layout": "8 aggregated", "attainment": 0.8},
    "bottleneck": "the first token is missed most",
    "requests": 900,
    "assumed": ["links: 400 Gbit/s"],
}


ODD = [
    json.dumps(REPORT | {"written_at": 1.0, name: value})
    for name, value in (
        ("requests", float("inf")),
        ("attainment", float("nan")),
        ("bottleneck", "\ud800"),
        ("assumed", 3),
    )
]


def test_a_report_is_shown_with_its_age(tmp_path: Path) -> None:
    path = str(tmp_path / "a.plan")
    reports = Reports()
    assert reports.read({"a": path}, 1000.0) == {}
    plan_report.write(path, REPORT, 400.0)
    shown = reports.read({"a": path}, 1000.0)["a"]
    assert (shown["verdict"], shown["age_s"]) == ("Disaggregation pays here: 5P3D.", 600)
    assert (shown["now"], shown["now_attainment"]) == ("8 aggregated", 0.8)
    assert reports.read({"a": path}, 1005.0)["a"]["age_s"] == 605
    plan_report.write(path, REPORT | {"now": None, "best": "4P4D"}, 1100.0)
    shown = reports.read({"a": path}, 1099.0)["a"]  # clocks may differ a little
    assert (shown["best"], shown["now"], shown["age_s"]) == ("4P4D", None, 0)
    assert [one.name for one in tmp_path.iterdir()] == ["a.plan"]  # no drafts are left


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", "null", '{"now": 3}', '"\\ud800"', json.dumps(REPORT), *ODD,
        '{"a":' * 100_000, "x" * (BYTES_MAX + 1),
    ],
)
def test_what_is_no_report_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.plan"
    path.write_text(text)
    shown = Reports().read({"a": str(path)}, 1000.0)["a"]
    assert str(path) in shown["error"] and "no report of kvgate plan fit" in shown["error"]


def test_a_file_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    paths = {"a": str(tmp_path), "b": str(tmp_path / ("x" * 300)), "c": str(tmp_path / "pipe")}
    shown = Reports().read(paths, 1000.0)
    assert "is no regular file" in shown["a"]["error"]
    assert "is no regular file" in shown["c"]["error"]
    assert "File name too long" in shown["b"]["error"]


def test_a_draft_that_cannot_be_kept_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "a.plan").mkdir()
    with pytest.raises(OSError, match="directory"):
        plan_report.write(str(tmp_path / "a.plan"), REPORT, 1.0)
    assert [one.name for one in tmp_path.iterdir()] == ["a.plan"]
