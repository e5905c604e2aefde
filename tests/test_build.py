"""What is built and shipped: versions agree, stubs match the compiled modules, the source archive
holds the sources of both languages, a missing or stale extension is one clear error.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import gateway
import native

ROOT = Path(__file__).resolve().parents[1]


def test_all_versions_are_one() -> None:
    crate = tomllib.loads((ROOT / "native/Cargo.toml").read_text())["package"]["version"]
    door = tomllib.loads((ROOT / "native/pyproject.toml").read_text())["project"]["version"]
    found = {gateway.__version__, native.VERSION, crate, door}
    found |= {native._core.__version__, native.relay.__version__}
    assert len(found) == 1, found


def test_rust_is_built_in_release_mode_everywhere() -> None:
    assert "debug=False" in (ROOT / "setup.py").read_text()


def test_the_rust_stub_matches() -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "native._core"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_relays_stub_names_what_is_there_and_all_of_it() -> None:
    """stubtest cannot read Cython's signatures; names it can be held to."""
    tree = ast.parse((ROOT / "native/relay.pyi").read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            assert callable(getattr(native.relay, node.name))
        if not isinstance(node, ast.ClassDef) or any(
            isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases
        ):
            continue
        compiled = getattr(native.relay, node.name)
        stubbed = {
            item.name
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            else item.target.id
            for item in node.body
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            or (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name))
        }
        missing = {name for name in stubbed if not hasattr(compiled, name)}
        assert not missing, f"{node.name}: in the stub only: {missing}"
        inherited = set(dir(compiled.__base__))
        public = {name for name in dir(compiled) if not name.startswith("_")} - inherited
        events = {"connection_made", "connection_lost", "data_received", "eof_received"}
        events |= {"pause_writing", "resume_writing"}  # the event loop's, not ours to call
        assert not public - stubbed - events, f"{node.name}: {public - stubbed - events}"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names in the source archive, without its top folder."""
    out = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "setup.py", "-q", "sdist", "-d", str(out)]
    egg = ["egg_info", "-e", str(out)]
    command[3:3] = egg
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(next(out.glob("*.tar.gz"))) as tar:
        return [name.partition("/")[2] for name in tar.getnames()]


def test_the_source_archive_can_be_built_from(archive: list[str]) -> None:
    wanted = ["setup.py", "pyproject.toml", "LICENSE", "README.md", "native/Cargo.toml"]
    wanted += ["native/Cargo.lock", "native/relay.pyx", "native/relay.pyi", "native/py.typed"]
    wanted += [f"native/{p.name}" for p in (ROOT / "native").glob("*.pxi")]
    wanted += [f"native/src/{p.name}" for p in (ROOT / "native/src").glob("*.rs")]
    missing = [name for name in wanted if name not in archive]
    assert not missing


def test_the_source_archive_holds_nothing_built(archive: list[str]) -> None:
    built = [n for n in archive if n.endswith((".so", ".c", ".pyc")) or "native/target" in n]
    assert not built


def test_an_installation_holds_the_files_of_pages(tmp_path: Path) -> None:
    """Whatever the gateway reads beside its modules: pages, styles, scripts, licences."""
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    env = {**os.environ, "KVGATE_BUILD": "none"}
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=env)
    listed = subprocess.run(
        ["git", "ls-files", "gateway"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert any(name.startswith("gateway/dashboard/page/") for name in listed)
    missing = [name for name in listed if not (tmp_path / name).exists()]
    assert not missing


def test_charts_are_the_release_that_is_named() -> None:
    """Checksums of uPlot 1.6.32 as npm has it."""
    known = {
        "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    }
    folder = ROOT / "gateway" / "charts"
    found = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in known}
    assert found == known


def test_a_missing_extension_names_file_interpreter_and_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ImportError) as caught:
        native._load("relay")
    text = str(caught.value)
    assert "relay" in text and sys.executable in text and "make build" in text


def test_a_stale_extension_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "VERSION", "9.9.9")
    with pytest.raises(ImportError, match=r"is version .*the package is 9\.9\.9"):
        native._load("_core")
