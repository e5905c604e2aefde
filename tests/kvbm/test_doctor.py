"""The doctor's findings: what it sees, what it advises, what it prints for the engine."""

from __future__ import annotations

import ast
import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from harness.blocks import ROOT
from harness.kvbm_daemon import DISK, command

from kvbm import doctor, engine_config
from kvbm.conf import load_text


def test_a_machine_that_tests_run_on_is_well_enough(tmp_path: Path) -> None:
    config = load_text(f"host {{ size 1m; }} {DISK}", prefix=str(tmp_path))
    found = {f.what.partition(" /")[0]: f for f in doctor.examine(config, {})}
    assert found["disk"].level == "ok"
    assert found["host memory"].level == "ok"
    assert found["socket"].said == "no daemon runs"
    assert found["hash seed"].hint
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_it_says_what_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = load_text("host { size 1048000g; } disk { path d; size 1048000g; }",
                     prefix=str(tmp_path))  # fmt: skip
    levels = {f.what.partition(" /")[0]: f.level for f in doctor.examine(huge, {})}
    assert (levels["host memory"], levels["disk"]) == ("bad", "warn")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65_536, 65_536))
    assert (doctor.memory_lock().level, doctor.memory_lock().said) == ("warn", "64 KiB")
    assert doctor.hash_seed({"PYTHONHASHSEED": "7"}).said.startswith("PYTHONHASHSEED=7")
    # A pseudo file system refuses files of others.
    assert doctor.direct("/proc").level == "bad"


def test_the_command_prints_options_that_a_shell_gives_back(tmp_path: Path) -> None:
    file = tmp_path / "kvbm.conf"
    file.write_text(f"socket {tmp_path}/s.sock;\nhost {{ size 2m; }}\n{DISK}")
    done = command("doctor", "-c", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "--kv-transfer-config" in line]
    configs = [json.loads(shlex.split(line)[1]) for line in lines]
    socket = f"{tmp_path}/s.sock"
    ways = (engine_config.arena, engine_config.tier, engine_config.connector)
    assert configs == [way(socket) for way in ways]
    document = json.loads(command("doctor", "-c", str(file), "--json").stdout)
    assert list(document["kv_transfer_config"].values()) == configs
    assert {finding["level"] for finding in document["findings"]} <= {"ok", "warn"}


WAYS = [engine_config.TIER, engine_config.CONNECTOR, engine_config.SPEC]


@pytest.mark.parametrize("way", WAYS)
def test_what_the_options_name_is_there(way: tuple[str, str]) -> None:
    """vLLM, which these need, is not here: they are looked at, not imported."""
    name, module = way
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    assert name in [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_rights_is_bad() -> None:
    config = load_text("disk { path /root/kvbm; size 1g; }")
    assert config.disk is not None
    [finding] = doctor.disk(config.disk)
    assert finding.level == "bad"


def test_a_command_ends_without_the_interpreters_end() -> None:
    """At which threads of libraries make it abort, now and then."""
    code = "import atexit; atexit.register(print, 'late'); from kvbm.cli import program; program()"
    asked = ((["doctor", "-h"], 0, "usage"), ([], 2, "doctor"), (["x"], 2, ""))
    for arguments, status, text in asked:
        ran = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        assert ran.returncode == status
        assert text in ran.stdout
        assert "late" not in ran.stdout
