"""Pages say what is there: links resolve, commands exist, examples load, shown errors are real."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.conf import ConfigErrors, load_text, render_errors

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    for name in re.findall(
        r"`((?:gateway|native|engines|tests|docs|examples)/[\w./-]+)`", page.read_text()
    ):
        assert (ROOT / name.rstrip("/")).exists(), name


def test_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    text = README + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"(?:^|`|=\d )make ([a-z][\w-]*)", text, re.M))
    assert named and named <= targets, named - targets


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", README, re.S)


def test_the_readmes_configuration_is_valid() -> None:
    (text,) = blocks("nginx")
    load_text(text, "kvgate.conf")


def test_the_readmes_error_is_what_is_printed() -> None:
    (shown,) = re.findall(r"```\n(kvgate\.conf:.*?)```", README, re.S)
    where, line, column = re.match(r"(\S+):(\d+):(\d+):", shown).groups()  # type: ignore[union-attr]
    source = shown.splitlines()[1]
    text = "http {\n upstream llama-8b { server 127.0.0.1:1; }\n server {\n listen 80;\n"
    text += "\n" * (int(line) - 5) + source + "\n }\n}\n"
    with pytest.raises(ConfigErrors) as caught:
        load_text(text, where)
    printed = render_errors(caught.value.errors).splitlines()
    assert printed[0].rpartition("/")[2] == shown.splitlines()[0]
    assert printed[1].strip() == source.strip()
    assert int(column) == source.index("proxy_pas") + 1


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.conf")), ids=lambda p: p.name)
def test_examples_pass_the_test_mode_silently(path: Path) -> None:
    program = "kvbm" if path.name == "kvbm.conf" else "gateway"
    done = subprocess.run(
        [sys.executable, "-m", program, "-t", "-c", str(path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
