"""Writes what `kvgate -t` says about each broken file beside it: look at it, then commit.

python tests/gateway/conf/accept.py
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests" / "golden" / "conf"


def messages(name: str) -> str:
    """The messages about a file of the corpus, named as seen from there."""
    from gateway.conf import ConfigErrors, read, render_errors

    with contextlib.chdir(CORPUS):
        try:
            found = read(name).warnings
        except ConfigErrors as error:
            found = error.errors
    return render_errors(found) + "\n"


def main() -> int:
    sys.path.insert(0, str(ROOT))
    changed = 0
    for path in sorted(CORPUS.glob("*.conf")):
        expected = path.with_suffix(".expected")
        text = messages(path.name)
        if not expected.exists() or expected.read_text() != text:
            expected.write_text(text)
            changed += 1
            print(f"changed: {expected.relative_to(ROOT)}")
    for expected in sorted(CORPUS.glob("*.expected")):
        if not expected.with_suffix(".conf").exists():
            expected.unlink()
            print(f"removed: {expected.relative_to(ROOT)}")
    print(f"{changed} files changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
