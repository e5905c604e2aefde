"""Lexing and tree against the PyPI package crossplane: on nginx files, and on texts made up.

Ours may never accept what crossplane rejects as syntax. The other way round it is stricter in a few
places, each nginx's own rule or one that catches a slip (see `STRICTER`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import crossplane  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.conf.directives import TABLE
from gateway.conf.errors import Report
from gateway.conf.files import FileSet
from gateway.conf.parser import Parser, Statement
from gateway.conf.sources import Source

NGINX = Path(__file__).parents[3] / "tests" / "golden" / "nginx"
EXAMPLES = Path(__file__).parents[3] / "examples"

# Messages for what only we reject, and why.
STRICTER = {
    r"unexpected .* after a closing quote": "nginx rejects it; crossplane reads two words",
    r'unexpected "\{" inside a word': "a{2} is a regular expression that needs quotes",
    r"quote . is not closed": "a quote over lines that ends against a word was never closed",
    r'"\$\{" needs a variable name': "crossplane takes any text up to the brace",
    r'".*" is not terminated by ";"': "crossplane forgets a lone word at the end of a file",
    r"blocks are nested deeper": "a limit of ours",
    r'unexpected "[;{]"': "crossplane takes a sign at the beginning as a name; nginx does not",
}

Tree = list[tuple[str, tuple[str, ...], int, Any]]


class NoFiles(FileSet):
    """Includes stay statements, as with crossplane's `single`."""

    def included(self, at: Any) -> list[Source]:
        return []


def ours(text: str) -> tuple[Tree, Report]:
    report = Report()
    parser = Parser(TABLE, NoFiles("", report), report)
    return [simplified(s) for s in parser.parse(Source("f", text))], report


def simplified(statement: Statement) -> tuple[str, tuple[str, ...], int, Any]:
    block = statement.block
    children = None if block is None else [simplified(child) for child in block]
    args = [token.text for token in statement.args]
    if statement.name.text == "if" and args:  # crossplane takes the parentheses off
        args[0] = args[0].removeprefix("(")
        args[-1] = args[-1].removesuffix(")")
        args = [arg for arg in args if arg]
    return statement.name.text, tuple(args), statement.name.line, children


def theirs(path: Path) -> tuple[Tree, list[str]]:
    payload = crossplane.parse(
        str(path), single=True, check_ctx=False, check_args=False, comments=False
    )
    (config,) = payload["config"]
    return [converted(d) for d in config["parsed"]], [e["error"] for e in config["errors"]]


def converted(directive: dict[str, Any]) -> tuple[str, tuple[str, ...], int, Any]:
    block = directive.get("block")
    children = None if block is None else [converted(d) for d in block if d["directive"] != "#"]
    args = tuple(unescaped(arg) for arg in directive["args"])
    return directive["directive"], args, directive["line"], children


def unescaped(text: str) -> str:
    """crossplane leaves escapes as written; nginx undoes these."""
    signs = {"t": "\t", "r": "\r", "n": "\n"}
    return re.sub(r"""\\(["'\\trn])""", lambda m: signs.get(m[1], m[1]), text)


def without_includes(tree: Tree) -> Tree:
    return [
        (name, args, line, None if block is None else without_includes(block))
        for name, args, line, block in tree
        if name not in ("include", "#")
    ]


FILES = sorted(NGINX.glob("*.conf")) + sorted(EXAMPLES.glob("*.conf"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_file_gives_the_same_tree(path: Path) -> None:
    tree, report = ours(path.read_bytes().decode())
    expected, errors = theirs(path)
    assert not report.found, report.found
    assert not errors
    assert tree == without_includes(expected)


def words() -> st.SearchStrategy[str]:
    bare = st.text(alphabet="abz019_-./:~^*$=()|?+@%,é", min_size=1, max_size=6)
    inside = st.text(alphabet="ab ;{}#$.\n", max_size=6)
    return st.one_of(
        bare.map(lambda w: w.replace("${", "$")),
        inside.map(lambda w: f'"{w}"'),
        inside.map(lambda w: f"'{w}'"),
        # crossplane takes the blank behind "${name}" into the word, so text follows it here.
        st.sampled_from(["${name}b", "a${name}b", "$name", "\\;", "\\d", "x\\.y"]),
    )


def statements() -> st.SearchStrategy[str]:
    name = st.text(alphabet="abcdefxyz_", min_size=1, max_size=8).filter(lambda n: n != "if")
    head = st.builds(lambda n, w: " ".join([n, *w]), name, st.lists(words(), max_size=3))
    leaf = head.map(lambda h: f"{h};")
    blank = st.sampled_from([" ", "\n", "\t", " # note ; {\n"])

    def block(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        body = st.lists(inner, max_size=3)
        return st.builds(lambda h, b, w: f"{h} {{{w}{w.join(b)}{w}}}", head, body, blank)

    several = st.recursive(leaf, lambda inner: inner | block(inner), max_leaves=8)
    return st.lists(several, max_size=4).map("\n".join)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("crossplane") / "f.conf"


FIXTURE = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(text=statements())
@FIXTURE
def test_made_up_file_gives_the_same_tree(scratch: Path, text: str) -> None:
    scratch.write_text(text, newline="")
    tree, report = ours(text)
    expected, errors = theirs(scratch)
    assert not errors
    assert not report.found, report.found
    assert tree == without_includes(expected)


@given(text=st.text(alphabet="ab;;{}{}\"' \n#$\\", max_size=40))
@FIXTURE
def test_nothing_is_accepted_that_crossplane_rejects(scratch: Path, text: str) -> None:
    scratch.write_text(text, newline="")
    _, report = ours(text)
    _, errors = theirs(scratch)
    if errors:
        assert report.failed, f"crossplane: {errors}"
    elif report.failed:
        messages = [error.message for error in report.found]
        assert any(re.match(p, m, re.DOTALL) for p in STRICTER for m in messages), messages


@given(text=statements(), at=st.integers(0, 200), sign=st.sampled_from(["", ";", "{", "}", '"']))
@FIXTURE
def test_one_change_is_rejected_by_both(scratch: Path, text: str, at: int, sign: str) -> None:
    changed = text[:at] + sign + text[at + 1 :]
    scratch.write_text(changed, newline="")
    _, report = ours(changed)
    _, errors = theirs(scratch)
    if errors:
        assert report.failed, f"crossplane: {errors}"
