"""Sizes, words and habits, read from the sources. Exemptions are listed, each with its reason."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gateway", "native", "engines", "kvbm")

FILE_LINES = {".py": 300, ".rs": 400, ".pyx": 400, ".pxi": 400}
FUNCTION_LINES = 60
PARAMETERS = 6
LINE_LENGTH = 100
BANNED_FILES = {"utils.py", "helpers.py", "common.py", "manager.py", "misc.py"}
BANNED_WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

# file -> why it may be longer than its kind allows
LONG_FILES: dict[str, str] = {}
# file:function -> why
LONG_FUNCTIONS: dict[str, str] = {}
# file:function -> why it takes more parameters
MANY_PARAMETERS: dict[str, str] = {}
# file -> why its lines may be longer
LONG_LINES: dict[str, str] = {}
# Programs that talk to a person or a pipe.
PRINTERS: dict[str, str] = {
    "gateway/cli/program.py": "the command line",
    "gateway/process/master.py": "says on stderr why it does not start, before there is a log",
    "gateway/cli/upstream.py": "the command line",
    "gateway/cli/explain.py": "the command line",
    "gateway/cli/roles.py": "the command line",
    "gateway/cli/simulate.py": "the command line",
    "gateway/cli/calibrate.py": "the command line",
    "gateway/cli/plan_size.py": "the command line",
    "gateway/cli/plan_fit.py": "the command line",
    "gateway/cli/workload.py": "the command line",
    "gateway/cli/load.py": "the command line",
    "gateway/cli/live.py": "the command line: shows what is wrong with a configuration",
    "gateway/cli/companion.py": "the command line: says what failed",
    "gateway/cli/admin_client.py": "the command line: shows what is wrong with a configuration",
    "gateway/cli/demo.py": "a program for people",
    "gateway/cli/demo_chat.py": "a program for people",
    "gateway/conf/reference.py": "writes the generated pages",
    "kvbm/cli_ask.py": "the command line",
    "kvbm/cli_doctor.py": "the command line",
}
# file -> the outermost loop or callback that must survive anything
CATCH_ALL: dict[str, str] = {
    "gateway/exchange.py": "callbacks of the relay: a fault ends the request, not the connection",
    "gateway/disagg/two_legs.py": "likewise",
    "gateway/disagg/elastic.py": "the loop of a looking",
    "gateway/fleet/health.py": "the loop of a check",
    "gateway/kv/discovery.py": "the loop of an asking",
    "gateway/kv/inquiry.py": "the loop of an asking",
    "gateway/kv/tokens.py": "the loop of a loading",
    "gateway/kv/events.py": "the loop of the thread that follows all engines",
    "gateway/process/children.py": "the outermost frame of a newborn process",
    "gateway/process/handover.py": "a process that did not become the new program must end",
    "gateway/process/monitor.py": "the outermost frame of a process",
    "gateway/process/worker.py": "a configuration it cannot take: the master replaces it",
    "kvbm/remote/courier.py": "the outermost frame of a thread: the other tiers go on",
    "kvbm/publisher.py": "the outermost frame of a thread: the tiers go on",
    "gateway/record.py": "a fault in a log or count must not reach the request",
}


def tracked(*suffixes: str) -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    paths = [ROOT / name for name in names if name.endswith(suffixes)]
    return [path for path in paths if path.exists()]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def in_packages(path: Path) -> bool:
    return path.relative_to(ROOT).parts[0] in PACKAGES


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_files_have_one_noun_and_fit_in_the_head() -> None:
    bad = []
    for path in tracked(*FILE_LINES):
        lines = len(path.read_text().splitlines())
        if lines > FILE_LINES[path.suffix] and name(path) not in LONG_FILES:
            bad.append(f"{name(path)}: {lines} lines, at most {FILE_LINES[path.suffix]}")
    assert not bad, "\n".join(bad)


def test_functions_fit_on_a_screen() -> None:
    bad = []
    for path in tracked(".py"):
        for function in functions(path):
            lines = (function.end_lineno or 0) - function.lineno + 1
            key = f"{name(path)}:{function.name}"
            if lines > FUNCTION_LINES and key not in LONG_FUNCTIONS:
                bad.append(f"{key}: {lines} lines")
    assert not bad, "\n".join(bad)


def test_functions_take_few_parameters() -> None:
    bad = []
    for path in filter(in_packages, tracked(".py")):
        for function in functions(path):
            given = function.args
            # Options by name only are an options object written in place.
            taken = [a.arg for a in given.posonlyargs + given.args if a.arg not in ("self", "cls")]
            key = f"{name(path)}:{function.name}"
            if len(taken) > PARAMETERS and key not in MANY_PARAMETERS:
                bad.append(f"{key}: {len(taken)} parameters")
    assert not bad, "\n".join(bad)


def test_lines_are_not_too_long() -> None:
    bad = []
    for path in tracked(".py"):
        if name(path) in LONG_LINES:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if len(line) > LINE_LENGTH and "# type: ignore" not in line and "http" not in line:
                bad.append(f"{name(path)}:{number}: {len(line)} characters")
    assert not bad, "\n".join(bad)


def test_names_say_what_is_inside() -> None:
    assert not [name(path) for path in tracked(".py") if path.name in BANNED_FILES]


def test_no_notes_to_ourselves() -> None:
    bad = [
        f"{name(path)}:{number}"
        for path in tracked(".py", ".rs", ".pyx", ".pxi")
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BANNED_WORDS.search(line)
    ]
    assert not bad, "\n".join(bad)


def test_only_programs_print() -> None:
    bad = []
    for path in filter(in_packages, tracked(".py")):
        if name(path) in PRINTERS or path.name in ("cli.py", "__main__.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                bad.append(f"{name(path)}:{node.lineno}")
    assert not bad, "\n".join(bad)


def test_everything_is_caught_only_at_the_outermost_places() -> None:
    bad = []
    for path in filter(in_packages, tracked(".py")):
        if name(path) in CATCH_ALL:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "everything"
                passes_on = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
                if caught in ("Exception", "BaseException", "everything") and not passes_on:
                    bad.append(f"{name(path)}:{node.lineno}: except {caught}")
    assert not bad, "\n".join(bad)


def test_modules_say_what_they_are() -> None:
    bad = [
        name(path)
        for path in filter(in_packages, tracked(".py"))
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not bad, "\n".join(bad)


def test_exemptions_are_still_needed() -> None:
    listed = {*LONG_FILES, *LONG_LINES, *PRINTERS, *CATCH_ALL}
    listed |= {key.partition(":")[0] for key in (*LONG_FUNCTIONS, *MANY_PARAMETERS)}
    assert not [path for path in listed if not (ROOT / path).exists()]
