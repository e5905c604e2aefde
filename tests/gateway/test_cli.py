"""The command line: exit status, what goes to stdout and what to stderr, lazy companions."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from gateway import __version__
from gateway.cli import program as cli

ROOT = Path(__file__).parents[2]
GOOD = "http { upstream a { server 10.0.0.1:8000; }\nserver { listen 1; location / { %s } } }\n"
PASS = GOOD % "proxy_pass http://a;"
SECRET = GOOD % "proxy_pass http://a; admin_token tell-nobody;"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kvgate.conf"


def run(*arguments: str) -> int:
    """main()'s status, also where argparse leaves by SystemExit."""
    try:
        return cli.main(arguments)
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


EXAMPLES = sorted(set((ROOT / "examples").glob("*.conf")) - {ROOT / "examples" / "kvbm.conf"})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_t_is_silent_on_examples(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("-t", "-c", str(path)) == 0
    assert capfd.readouterr() == ("", "")


def test_t_says_what_is_wrong_on_stderr(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD % "proxy_pas http://a;")
    assert run("-t", "-c", str(file)) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[0] == (
        f'{file}:2:33: error: unknown directive "proxy_pas" in "location" '
        '(did you mean "proxy_pass"?)'
    )


def test_t_with_warnings_succeeds(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_text(SECRET)
    assert run("-t", "-c", str(file)) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "warning" in err and "tell-nobody" not in err


@pytest.mark.parametrize(
    ("text", "status", "count"), [(PASS, 0, 0), (SECRET, 0, 1), ("a;b;", 1, 2)]
)
def test_json_on_stdout(
    file: Path, capfd: pytest.CaptureFixture[str], text: str, status: int, count: int
) -> None:
    file.write_text(text)
    assert run("-t", "-c", str(file), "--format", "json") == status
    out, err = capfd.readouterr()
    assert err == ""
    records = json.loads(out)
    assert len(records) == count
    for record in records:
        assert record["file"] == str(file)
        assert record["severity"] in ("error", "warning")


def test_dump_prints_all_files_without_secrets(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file.write_text("include more.inc;\n" + SECRET)
    (file.parent / "more.inc").write_text("pid x.pid;\n")
    assert run("-T", "-c", str(file)) == 0
    out, _ = capfd.readouterr()
    assert f"# configuration file {file}:\n" in out
    assert f"# configuration file {file.parent}/more.inc:\npid x.pid;\n" in out
    assert "tell-nobody" not in out and "admin_token ***********;" in out


def test_prefix_and_default_file(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_text(PASS)
    assert run("-t", "-p", str(file.parent)) == 0
    assert run("-t", "-p", str(file.parent), "-c", "other.conf") == 1
    assert "other.conf: error: cannot read" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("globals_", "status"),
    [("pid a.pid", 0), ("pid a.pid; shutdown_delay 1s;", 0), ("nothing x", 1)],
)
def test_global_directives(
    file: Path, capfd: pytest.CaptureFixture[str], globals_: str, status: int
) -> None:
    file.write_text(PASS)
    assert run("-t", "-c", str(file), "-g", globals_) == status
    if status:
        assert capfd.readouterr().err.startswith('-g:1:1: error: unknown directive "nothing"')


def test_global_directives_that_are_no_text(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_text(PASS)
    assert run("-t", "-c", str(file), "-g", "pid \udcff;") == 1
    assert "-g:1:5: error: the text is not UTF-8" in capfd.readouterr().err


def test_global_directive_and_the_file_s_are_duplicates(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file.write_text("pid b.pid;\n" + PASS)
    assert run("-t", "-c", str(file), "-g", "pid a.pid;") == 1
    assert '"pid" is duplicate' in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("-x",), ("-c",), ("--format", "xml"), ("nonsense",), ("engine",)]
)
def test_wrong_usage(arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("kvgate: ")


def test_versions(capfd: pytest.CaptureFixture[str]) -> None:
    for words in (("-v",), ("--version",), ("version",)):
        assert run(*words) == 0
        assert capfd.readouterr().out == f"kvgate/{__version__}\n"
    assert run("-V") == 0
    out = capfd.readouterr().out
    assert "python 3." in out and "uvicorn " in out and "native " in out


def test_help_in_every_form(capfd: pytest.CaptureFixture[str]) -> None:
    texts = set()
    for words in (("-h",), ("--help",), ("help",)):
        assert run(*words) == 0
        texts.add(capfd.readouterr().out)
    assert len(texts) == 1 and "usage: kvgate" in texts.pop()
    assert run("help", "sim") == 0
    assert "usage: kvgate sim" in capfd.readouterr().out
    assert run("help", "nonsense") == 2


@pytest.mark.parametrize("words", [("plan", "--help"), ("plan", "-h"), ("help", "plan")])
def test_help_for_a_word_that_begins_several_commands(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 0
    out = capfd.readouterr().out
    assert "kvgate plan size" in out and "kvgate plan fit" in out and "kvgate load" not in out


@pytest.mark.parametrize("words", [("plan",), ("plan", "nonsense"), ("nonsense", "--help")])
def test_what_is_no_command_is_said(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert f'unknown command "{" ".join(words[:1] if words[1:] == ("--help",) else words)}"' in (
        capfd.readouterr().err
    )


@pytest.mark.parametrize("command", ["simulate", "workload"])
def test_help_says_every_trace_that_is_read(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "-h") == 0
    out = " ".join(capfd.readouterr().out.split())
    for name in ("kvgate's own", "Mooncake", "aiperf", "Bailian", "Azure", "BurstGPT", "ServeGen"):
        assert name in out


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (("sim",), "engines.sim.cli"),
        (("engine", "vllm"), "engines.vllm.cli"),
        (("demo",), "gateway.cli.demo"),
    ],
)
def test_companions_get_the_rest(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], module: str
) -> None:
    seen: list[list[str]] = []
    fake = types.ModuleType(module)
    fake.main = lambda argv: seen.append(argv) or 5  # type: ignore[attr-defined,func-returns-value]
    monkeypatch.setitem(sys.modules, module, fake)
    assert run(*words, "--port", "0") == 5
    assert seen == [["--port", "0"]]


def test_configuration_runs(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    file.write_text(PASS)
    seen = []
    fake = types.ModuleType("gateway.process.master")
    fake.run = lambda config, reread: seen.append(config)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gateway.process.master", fake)
    assert run("-c", str(file)) == 0
    assert seen[0].file == str(file)


def test_t_needs_no_native_module(file: Path) -> None:
    """A configuration can be tested where nothing is built, and quickly."""
    file.write_text(PASS)
    code = (
        "import sys; sys.modules.update({'native': None, 'uvicorn': None, 'starlette': None});"
        f"from gateway.cli.program import main; sys.exit(main(['-t', '-c', {str(file)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
